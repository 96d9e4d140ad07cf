"""A call's part of its tenant's quotas: reserved before anything is done for it, settled when it is over.

What is reserved is the most that it may use; where nothing bounds its output it is what such outputs usually have, and
what it uses beyond that is owed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cluster.gateway import generation
from cluster.gateway.identity import Identity
from cluster.gateway.quotas import Quotas, Reservation, reserve
from cluster.gateway.schema import ChatRequest, CompletionRequest
from cluster.gateway.tokens import Count
from policies.work import OutputEstimator


class Allowance:
    """Of one call. It is settled once."""

    def __init__(self) -> None:
        self._held = Reservation()
        self._prompt_tokens = 0

    async def reserve(
        self,
        quotas: Quotas | None,
        identity: Identity,
        request: ChatRequest | CompletionRequest,
        count: Callable[[], Awaitable[list[Count]]],
        outputs: OutputEstimator,
        context: generation.Context,
        *,
        counts_as: int = 1,
    ) -> None:
        """Hold what the call may use. Its prompts are counted only where their tokens are.

        ``counts_as`` is 0 for what was counted as a request before.

        Raises:
            QuotaExceeded: the tenant has had its share of this minute.
            InvalidRequest: the call does not fit the context, or alone is more than a minute's share.
            FailedClosed: the store cannot say.
        """
        tokens = 0
        if identity.quotas.tokens_per_minute is not None:
            counts = await count()
            self._prompt_tokens = sum(one.tokens for one in counts)
            tokens = self._prompt_tokens + _most_output(request, counts, outputs, context)
        self._held = await reserve(quotas, identity, tokens, requests=counts_as)

    def settle(
        self, outcome: str, *, attempts: int, acted: bool, output_tokens: int, usage: dict[str, Any]
    ) -> None:
        """The call is over. ``acted`` says that a tool was asked, ``output_tokens`` what replicas have generated.

        What was answered from a cache counts as a request and takes no tokens; what was refused counts for nothing.
        """
        if attempts == 0:
            if outcome == "ok" or acted:
                self._held.settle(0)
            else:
                self._held.release()
            return
        told = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        used = [one for one in told if isinstance(one, int)]
        self._held.settle(sum(used) if len(used) == len(told) else self._prompt_tokens + output_tokens)


def _most_output(
    request: ChatRequest | CompletionRequest,
    counts: list[Count],
    outputs: OutputEstimator,
    context: generation.Context,
) -> int:
    limit = generation.output_limit(request)
    if limit is None:
        return generation.estimate_work(request, counts, outputs, context).output_tokens
    return limit * (request.n or 1) * len(counts)
