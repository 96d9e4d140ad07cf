"""Makes less of a request, rung by rung: what the ladder of ``policies`` means for text generation.

Only what is safe to take away is taken: half of the output, the oldest turns of a long chat, the bigger model.
System messages, the last user message and whatever belongs to its turn stay; a prompt of ``/v1/completions`` is
never cut, because nobody knows which part of it is the question. No rung looks at whether a request fits the
context: that was decided before, and an oversized prompt gets its 400 whatever the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cluster.gateway.deferral import Deferral
from cluster.gateway.generation import Api, count_prompts, output_limit
from cluster.gateway.recall import Earlier
from cluster.gateway.schema import ChatRequest, CompletionRequest
from cluster.gateway.tokens import Count, TokenCounter
from policies.call import Call
from policies.ladder import CACHED, DEFERRED, SHORT_CONTEXT, SHORT_OUTPUT, SMALL_MODEL


@dataclass(frozen=True, slots=True)
class LadderKnobs:
    """What the shortening rungs leave; ``output_share`` is a ratio, the others are tokens."""

    output_share: float = 0.5
    output_tokens: int = 64
    """Of an answer for which no limit was asked."""
    context_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it is asked at some rung, and the length of each of its prompts."""

    api: Api
    request: ChatRequest | CompletionRequest
    body: dict[str, Any]
    counts: list[Count]


def shorter_output(asked: Asked, knobs: LadderKnobs) -> Asked | None:
    """Return the request with a lower limit on its output; None where that would change nothing.

    A limit that the request's own ``min_tokens`` does not allow is not set.
    """
    limit = output_limit(asked.request)
    lower = knobs.output_tokens if limit is None else math.ceil(limit * knobs.output_share)
    least = asked.body.get("min_tokens")
    if isinstance(least, int):
        lower = max(lower, least)
    if limit is not None and lower >= limit:
        return None
    chat = isinstance(asked.request, ChatRequest)
    name = "max_completion_tokens" if chat and asked.request.max_tokens is None else "max_tokens"
    if asked.body.get("max_completion_tokens") is not None:
        name = "max_completion_tokens"
    return replace(
        asked,
        request=asked.request.model_copy(update={name: lower}),
        body={**asked.body, name: lower},
    )


def shorter_context(asked: Asked, knobs: LadderKnobs, counter: TokenCounter) -> Asked | None:
    """Return the chat without as many of its oldest turns as make it fit; None where none can or need go.

    A turn is a user message with what follows it, so that no tool's answer is left without its question. The
    number of turns to drop is guessed from their size and then counted, which needs a count or two, not one a
    message.
    """
    if not isinstance(asked.request, ChatRequest) or asked.counts[0].tokens <= knobs.context_tokens:
        return None
    messages: list[dict[str, Any]] = asked.body["messages"]
    turns = turns_of(messages)
    droppable = turns[:-1]
    if not droppable:
        return None
    sizes = [sum(len(str(messages[n].get("content") or "")) for n in turn) for turn in turns]
    per_token = max(1, sum(len(str(one.get("content") or "")) for one in messages)) / asked.counts[0].tokens
    excess = (asked.counts[0].tokens - knobs.context_tokens) * per_token
    dropped = 0
    while dropped < len(droppable) and excess > 0:
        excess -= sizes[dropped]
        dropped += 1
    while True:
        gone = {n for turn in droppable[:dropped] for n in turn}
        kept = [message for n, message in enumerate(messages) if n not in gone]
        body = {**asked.body, "messages": kept}
        counts = count_prompts(asked.api, body, counter)
        if counts[0].tokens <= knobs.context_tokens or dropped == len(droppable):
            return replace(asked, body=body, counts=counts)
        dropped += 1


def turns_of(messages: list[dict[str, Any]]) -> list[list[int]]:
    """Return the indices of the messages of each turn, oldest first; instructions belong to none."""
    turns: list[list[int]] = []
    for number, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            continue
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(number)
    return turns


class Lesser:
    """A request that can be asked for less (:class:`policies.call.Degradable`).

    ``build`` makes the call of a request; ``small_model`` returns the name of the smaller model, or None while
    nobody serves it; ``earlier`` returns the answer of before that may be given at the rung ``cached``, or None;
    ``later`` what makes a job of the request at the rung ``deferred``, or None where it must not be one.
    """

    def __init__(
        self,
        asked: Asked,
        knobs: LadderKnobs,
        counter: TokenCounter,
        *,
        small_model: Callable[[], str | None],
        build: Callable[[Asked], Call],
        earlier: Callable[[], Earlier | None] = lambda: None,
        later: Callable[[], Deferral | None] = lambda: None,
    ) -> None:
        self._asked = asked
        self._knobs = knobs
        self._counter = counter
        self._small_model = small_model
        self._earlier = earlier
        self._later = later
        self._build = build

    def at(self, call: Call, rung: str) -> Call | None:
        """Return the call with what that rung takes away; None when the rung changes nothing for it.

        Optional tools are dropped where they would have been asked, before there is a call.
        """
        if rung == CACHED:
            earlier = self._earlier()
            return None if earlier is None else replace(call, payload=earlier)
        if rung == DEFERRED:
            later = self._later()
            return None if later is None else replace(call, payload=later)
        lesser = self._lesser(rung)
        if lesser is None:
            return None
        made = self._build(lesser)
        return replace(
            call,
            payload=made.payload,
            work=made.work,
            resumable=made.resumable,
            degradable=made.degradable,
        )

    def _lesser(self, rung: str) -> Asked | None:
        if rung == SHORT_OUTPUT:
            return shorter_output(self._asked, self._knobs)
        if rung == SHORT_CONTEXT:
            return shorter_context(self._asked, self._knobs, self._counter)
        if rung == SMALL_MODEL and (name := self._small_model()) is not None:
            return replace(self._asked, body={**self._asked.body, "model": name})
        return None
