"""What a fake replica says: either words by their number, or a model in earnest.

With a tokenizer each token depends on all before it, so that an output which is continued elsewhere comes out the
same only if it was continued exactly. Its sampling starts anew with each request, as an engine's does, unless it is
keyed by position.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from tokenizers.decoders import DecodeStream

from cluster.model.tokenizer import END, SPECIAL

CONTEXT = 4096
END_ID = SPECIAL.index(END)
FIRST_ID = len(SPECIAL)


@dataclass(frozen=True)
class Token:
    id: int
    text: str


@dataclass(frozen=True)
class Plan:
    """What one choice will be."""

    prompt: list[int]
    tokens: list[Token]
    finish: str


def answer_plan(body: dict[str, Any], tokenizer: Any, index: int) -> Plan:
    """Return what will be answered to a request as its choice ``index``."""
    if tokenizer is None:
        limit = output_tokens(body)
        tokens = [Token(number, token_text(number, index)) for number in range(limit)]
        return Plan(list(range(prompt_tokens(body))), tokens, "length")
    prompt = _prompt_ids(body, tokenizer)
    bounded = body.get("max_completion_tokens") or body.get("max_tokens") or "prompt" in body
    limit = output_tokens(body) if bounded else CONTEXT
    extra = body.get("vllm_xargs") or {}
    drawn = body.get("temperature", 1.0) > 0
    skip = body.get("skip_special_tokens", True)
    stream = DecodeStream(ids=prompt, skip_special_tokens=skip)
    ids, tokens = list(prompt), list[Token]()
    while len(tokens) < limit and len(ids) < CONTEXT:
        if len(ids) >= extra.get("brownout_end_at", CONTEXT + 1):
            return Plan(prompt, [*tokens, Token(END_ID, "")], "stop")
        # an engine's generator starts again with each request: what is drawn depends on the number of the draw
        salt = (body.get("seed"), len(tokens), index) if drawn else sorted(extra.items())
        chosen = zlib.crc32(repr((ids[-64:], len(ids), salt)).encode())
        ids.append(FIRST_ID + chosen % (tokenizer.get_vocab_size() - FIRST_ID))
        tokens.append(Token(ids[-1], stream.step(tokenizer, ids[-1]) or ""))
    return Plan(prompt, tokens, "length")


def _prompt_ids(body: dict[str, Any], tokenizer: Any) -> list[int]:
    if "messages" in body:
        text = "".join(f"<|{one['role']}|>{one.get('content') or ''}<|end|>" for one in body["messages"])
        return list(tokenizer.encode(text + "<|assistant|>", add_special_tokens=False).ids)
    prompt = body["prompt"]
    return list(tokenizer.encode(prompt).ids) if isinstance(prompt, str) else list(prompt)


def token_text(number: int, index: int = 0) -> str:
    """Return the text of a token: varied, with quotes, escapes and multi-byte letters in it."""
    words = (" plain", ' "finish_reason":"stop"', " Ünï¢ode", "\n\n", " data: [DONE]", " 語", " \\u0041")
    return f"{words[(number + index) % len(words)]}{number}"


def output_tokens(body: dict[str, Any]) -> int:
    """Return how many tokens the fake generates: as many as are allowed."""
    return int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)


def prompt_tokens(body: dict[str, Any]) -> int:
    """Return the length of the prompt: one token a character, near enough."""
    if "messages" in body:
        return sum(len(str(message.get("content") or "")) for message in body["messages"])
    return len(body["prompt"])
