"""Says which requests may be answered from an earlier answer, and what they are known by.

An allow-list, as for answers that are continued (:mod:`~cluster.gateway.exactness`): what is not known to leave the
answer to the request itself is computed each time. Beyond that, what makes no difference to a *whole* answer is
allowed here, because it is part of what the answer is known by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.gateway.exactness import temperature_of, why_not
from cluster.gateway.generation import Api
from cluster.gateway.schema import ChatRequest, CompletionRequest
from policies.digest import canonical

_BY_THE_TOKENS_ALONE: Final = frozenset(
    {
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "bad_words",
        "min_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    }
)
"""With greedy sampling these lead to one answer, if not to one that can be gone on with from the middle."""
_TOLD_OTHERWISE: Final = (
    "return_token_ids",
    "return_prompt_text",
    "return_tokens_as_token_ids",
    "vllm_xargs",
)
"""Fields that ask for more than the kept form holds, or for something that nobody here knows."""
_NO_DIFFERENCE: Final = frozenset(
    {
        "stream",
        "stream_options",
        "stream_interval",
        "user",
        "metadata",
        "store",
        "service_tier",
        "request_id",
        "session_id",
        "priority",
        "cache_salt",
        "resume",
    }
)
"""Fields that say how an answer is told, scheduled or accounted, and never what it says."""


def why_computed(
    api: Api, request: ChatRequest | CompletionRequest, body: Mapping[str, Any], defaults: Mapping[str, Any]
) -> str:
    """Return why a request is to be computed each time; empty where an earlier answer would do.

    ``defaults`` is the model's own generation config.
    """
    if request.asked_tools or body.get("tools"):
        return "it has tools, which may act or answer otherwise"
    if temperature_of(body, defaults) != 0:
        return "its tokens are drawn at random"
    for name in _TOLD_OTHERWISE:
        if body.get(name):
            return f"{name!r} asks for what is not kept"
    rest = {name: value for name, value in body.items() if name not in _BY_THE_TOKENS_ALONE}
    prompts = 1
    if api == "completions":
        prompt = body["prompt"]
        prompts = 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)
    plain = {name: value for name, value in defaults.items() if name not in _BY_THE_TOKENS_ALONE}
    return why_not(rest, prompts=prompts, defaults=plain) or ""


def request_text(api: Api, body: Mapping[str, Any]) -> str:
    """Return what a request is known by: all of it, but for what makes no difference to the answer."""
    asked = {name: value for name, value in body.items() if name not in _NO_DIFFERENCE}
    return canonical({"api": api, "body": asked})
