"""Says which requests can be continued exactly, and makes seeded sampling one of them.

The rule is an allow-list: what is not known to leave the choice of a token to the ids before it (or to their
absolute position) is refused by name, so that a parameter of a later vLLM is refused until somebody has shown
that it may pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.xargs import END_AT, SEED, TEMPERATURE, TOP_P

OPT_IN: Final = "best_effort"
"""Value of the extension field ``resume``: go on even though a new random choice may come out differently."""

_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "spaces_between_special_tokens": (True,),
}
"""Fields that may be given, but only with a value that changes nothing."""

_HARMLESS: Final = frozenset(
    {
        # what is asked, which is rendered once and never again
        "model",
        "messages",
        "prompt",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        # how long it may get and where it ends
        "max_tokens",
        "max_completion_tokens",
        "ignore_eos",
        # the choice of a token by the ids before it
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "logit_bias",
        "vllm_xargs",
        # how it is told, scheduled, cached and accounted
        "stream",
        "stream_options",
        "stream_interval",
        "skip_special_tokens",
        "return_token_ids",
        "return_prompt_text",
        "return_tokens_as_token_ids",
        "priority",
        "cache_salt",
        "request_id",
        "session_id",
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        # the gateway's own
        "tool_call",
        "resume",
    }
)
_BY_POSITION: Final = frozenset({END_AT, SEED, TEMPERATURE, TOP_P})
_SEEDS: Final = 2**63
_PENALTIES: Final = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def why_not(body: Mapping[str, Any], *, prompts: int, defaults: Mapping[str, Any]) -> str | None:
    """Return why a request cannot be continued exactly; None when it can.

    ``body`` is what the replica gets, ``prompts`` the number of its prompts, ``defaults`` the model's own
    generation config, which vLLM uses for what a request does not say.
    """
    why = _why_not_greedy(body, prompts, defaults)
    if why is None and temperature_of(body, defaults) > 0 and body.get("resume") != OPT_IN:
        why = "its tokens are drawn at random, and a new draw would differ"
    return why


def by_position(body: dict[str, Any], *, prompts: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with its seed keyed by position, where that can be; else as it is.

    The engine's generator starts again with a request; noise keyed by seed and absolute position does not care
    (:mod:`cluster.position_noise`). Only temperature and top-p are drawn in that way.
    """
    temperature = temperature_of(body, defaults)
    seed = body.get("seed")
    seeded = isinstance(seed, int) and -_SEEDS <= seed < _SEEDS and temperature > 0
    cut_off = body.get("top_k", defaults.get("top_k")) not in (None, 0, -1) or (
        body.get("min_p", defaults.get("min_p")) or 0
    )
    given = body.get("vllm_xargs") or {}
    if not seeded or cut_off or SEED in given or _why_not_greedy(body, prompts, defaults) is not None:
        return body
    drawn = {name: value for name, value in body.items() if name not in ("seed", "top_p")}
    top_p = body.get("top_p")
    noise = {
        SEED: seed,
        TEMPERATURE: float(temperature),
        TOP_P: float(defaults.get("top_p", 1.0) if top_p is None else top_p),
    }
    return {**drawn, "temperature": 0, "vllm_xargs": {**given, **noise}}


def temperature_of(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> float:
    """Return the temperature that the engine will use; vLLM's own default is 1."""
    given = body.get("temperature")
    return float(defaults.get("temperature", 1.0) if given is None else given)


def _why_not_greedy(body: Mapping[str, Any], prompts: int, defaults: Mapping[str, Any]) -> str | None:
    if prompts != 1:
        return "it has several prompts"
    for name, value in body.items():
        if value is None or name in _HARMLESS:
            continue
        if name not in _NEUTRAL:
            return f"it is not known what {name!r} does to an answer that is continued"
        if not _is_one_of(value, _NEUTRAL[name]):
            return f"{name!r} depends on more than the tokens before, or is told of the whole answer"
    for name in _PENALTIES:
        if body.get(name) is None and defaults.get(name) not in (None, *_NEUTRAL[name]):
            return f"the model itself sets {name!r}"
    if strange := sorted(set(body.get("vllm_xargs") or ()) - _BY_POSITION):
        return f"it is not known what {strange[0]!r} in 'vllm_xargs' does to an answer that is continued"
    if any(_holds_more_than_text(message) for message in body.get("messages") or ()):
        return "its prompt holds more than text"
    return None


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Compare with booleans apart: ``logprobs: 0`` asks for log probabilities, ``logprobs: false`` does not."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _holds_more_than_text(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        not isinstance(part, dict) or part.get("type") != "text" for part in content
    )
