"""From a checked request to what is sent to a replica, and to the work that it will cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from cluster.gateway.continuation import Continuation
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.schema import ChatRequest, CompletionRequest
from cluster.gateway.tokens import Count, TokenCounter
from policies.call import Call
from policies.work import OutputEstimator, Work

Api = Literal["chat", "completions"]
PATHS: Final[dict[Api, str]] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for ``/v1/completions``; a chat may go on to the end of the context."""
_RENDERED_ELSEWHERE: Final = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "tools",
)
"""Fields that change how the engine renders the prompt, so that a count made here is not exact."""


_OWN_FIELDS: Final = ("tool_call", "tool_calls", "resume")
"""Extensions that the replica never sees."""
_FOR_THE_TRUSTED: Final = ("priority", "request_id", "kv_transfer_params")
"""Fields of vLLM's with which one caller could get ahead of others, end their requests, or read their cache."""


class Receiver(Protocol):
    """Where the answer goes as it comes."""

    def opened(self, call: Call) -> None:
        """The first token of an attempt is there."""
        ...

    async def write(self, data: bytes) -> None:
        """Pass events on to the client.

        What could not be passed on because this was cancelled goes before what is written next: the tokens in it
        count as told.
        """
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """The payload of a call: what to send, and how to read what comes back.

    ``shows_ids`` says that the client asked for token ids, ``continuation`` keeps the tokens of a call that can be
    continued, and ``continues`` that this payload asks for the rest of it.
    """

    api: Api
    body: bytes
    stream: bool
    want_usage: bool
    choices: int
    receiver: Receiver
    shows_ids: bool = False
    continuation: Continuation | None = None
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What the served model allows."""

    model: str
    max_model_len: int


def check_model_name(name: str, context: Context) -> None:
    """Refuse a model that is not served.

    Raises:
        InvalidRequest: with status 404.
    """
    if name != context.model:
        raise InvalidRequest(
            f"the model {name!r} does not exist; {context.model!r} is served",
            status=404,
            param="model",
            code="model_not_found",
        )


def with_tool_answer(api: Api, body: dict[str, Any], method: str, answer: Any) -> dict[str, Any]:
    """Return the body with the tool's answer at the end of the last user message, or of the prompt.

    Raises:
        InvalidRequest: the prompt consists of token ids, to which no text can be added.
    """
    said = f"\n\n[{method}] {json.dumps(answer, ensure_ascii=False, sort_keys=True)}"
    if api == "completions":
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return {**body, "prompt": prompt + said}
        if all(isinstance(one, str) for one in prompt):
            return {**body, "prompt": [one + said for one in prompt]}
        raise InvalidRequest("tool_call needs a prompt of text, not of token ids", param="prompt")
    messages = [dict(message) for message in body["messages"]]
    last = next((one for one in reversed(messages) if one["role"] == "user"), messages[-1])
    content = last.get("content")
    if isinstance(content, list):
        last["content"] = [*content, {"type": "text", "text": said}]
    else:
        last["content"] = (content or "") + said
    return {**body, "messages": messages}


def upstream_body(
    body: dict[str, Any], *, token_ids: bool = False, cache_salt: str = "", trusted: bool = True
) -> bytes:
    """Return what the replica gets: always a stream, always with usage, without the gateway's own fields.

    ``token_ids`` asks for them, whether the client wants them or not. ``cache_salt`` is the tenant's own and replaces
    what the client says: with another's salt it could tell by the time to the first token what another has asked.
    Who is not ``trusted`` does not steer the engine itself.
    """
    options = dict(body.get("stream_options") or {})
    if not options.get("include_usage"):
        options.pop("continuous_usage_stats", None)
    options["include_usage"] = True
    sent = {**body, "stream": True, "stream_options": options}
    for name in _OWN_FIELDS:
        sent.pop(name, None)
    for name in () if trusted else _FOR_THE_TRUSTED:
        sent.pop(name, None)
    if cache_salt:
        sent["cache_salt"] = cache_salt
    if token_ids:
        sent["return_token_ids"] = True
    return json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()


def count_prompts(api: Api, body: dict[str, Any], counter: TokenCounter) -> list[Count]:
    """Return the length of each prompt in the request."""
    if api == "chat":
        plain = not any(body.get(name) is not None for name in _RENDERED_ELSEWHERE)
        return [counter.chat(body["messages"], body.get("tools"), plain=plain)]
    prompt = body["prompt"]
    prompts: Sequence[Any] = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    plain = body.get("truncate_prompt_tokens") is None and body.get("add_special_tokens") is not False
    counts = [counter.text(one) if isinstance(one, str) else Count(len(one), exact=True) for one in prompts]
    return counts if plain else [Count(count.tokens, exact=False) for count in counts]


def output_limit(request: ChatRequest | CompletionRequest) -> int | None:
    """Return the most tokens that one choice may have; None where only the context bounds it."""
    if isinstance(request, ChatRequest):
        return request.max_completion_tokens or request.max_tokens
    return request.max_tokens or _DEFAULT_MAX_TOKENS


def check_length(request: ChatRequest | CompletionRequest, counts: list[Count], context: Context) -> None:
    """Refuse what cannot fit the context.

    Raises:
        InvalidRequest: the prompt and the asked-for output have too many tokens together.
    """
    chat = isinstance(request, ChatRequest)
    limit, most = output_limit(request), context.max_model_len
    if limit is not None and limit >= most:
        name = "max_completion_tokens" if chat and request.max_tokens is None else "max_tokens"
        raise InvalidRequest(
            f"{name} is {limit}, but the model's context has {most} tokens; ask for fewer",
            param=name,
            code="context_length_exceeded",
        )
    for count in counts:
        if count.exact and count.tokens + (limit or 1) > most:
            raise InvalidRequest(
                f"the model's context has {most} tokens, but the prompt has {count.tokens} and up to "
                f"{limit or 1} more are asked for; shorten the prompt or the output",
                param="messages" if chat else "prompt",
                code="context_length_exceeded",
            )


def estimate_work(
    request: ChatRequest | CompletionRequest,
    counts: list[Count],
    estimator: OutputEstimator,
    context: Context,
) -> Work:
    """Return the work of the call: prompt tokens as counted, output tokens as expected."""
    prompt_tokens = sum(count.tokens for count in counts)
    sequences = (request.n or 1) * len(counts)
    room = max(1, context.max_model_len - max(count.tokens for count in counts))
    output = estimator.estimate(output_limit(request), room)
    return Work(prompt_tokens, output * sequences, sequences)
