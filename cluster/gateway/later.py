"""Puts one request off: it becomes a job, and its sender is told where that is.

Either the sender would rather have a job than wait (``Prefer: respond-async``), or the ladder has nothing better for
the call (rung ``deferred``). The job does the request as it was asked, whatever the ladder has taken away by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from cluster.gateway import generation
from cluster.gateway.exchange import Exchange
from cluster.gateway.identity import Identity
from cluster.gateway.jobs import PATH, Jobs, come_back_s, document
from cluster.gateway.keyed import UnderKey
from cluster.gateway.prefer import RESPOND_ASYNC, prefers_async
from cluster.gateway.run_as import run_as
from cluster.gateway.service import Gateway
from cluster.gateway.standing import Standing
from cluster.gateway.store.store import StoreUnavailable
from policies.errors import QueueFull, QuotaExceeded
from policies.work import Work
from policies.work_queue import Job

_APPLIED: Final = "preference-applied"


class Later:
    """What a request becomes when it is not answered now. ``job`` is there once it was accepted.

    Where the gateway has no jobs, or the request is a job's own, nothing can be put off.
    """

    def __init__(
        self,
        gateway: Gateway,
        api: generation.Api,
        exchange: Exchange,
        *,
        body: Mapping[str, Any],
        identity: Identity,
        standing: Standing,
        request_id: str,
    ) -> None:
        self._gateway = gateway
        own = run_as(exchange.scope) is not None
        self._jobs: Jobs | None = None if own else gateway.state.jobs
        self._api: generation.Api = api
        self._exchange = exchange
        self._body = body
        self._identity = identity
        self._standing = standing
        self._request_id = request_id
        self.under: UnderKey | None = None
        """What holds the request's idempotency key, once it is held."""
        self.work = Work()
        """Of the request as it was asked, once it was counted."""
        self.job: Job | None = None

    @property
    def possible(self) -> bool:
        """Tell whether the request can become a job at all."""
        return self._jobs is not None

    @property
    def preferred(self) -> bool:
        """Tell whether its sender would rather have a job, and can."""
        return self.possible and prefers_async(self._exchange.scope)

    async def accept(self) -> Job:
        """Make a job of the request; it is on disk when this returns.

        Raises:
            QueueFull: there is no room, or not for this tenant (QuotaExceeded).
            FailedClosed: the store does not answer.
        """
        assert self._jobs is not None, "possible says whether there are any"
        under = self.under
        acted = under is not None and under.acted
        if under is not None:
            under.acted = (
                True  # the job may be there, whatever becomes of its answer: a retry must look for it
            )
        try:
            self.job = await self._jobs.accept(
                self._identity,
                self._standing,
                path=generation.PATHS[self._api],
                body=self._body,
                work=self.work,
                request_id=self._request_id,
                claim=None if under is None else under.scope,
            )
        except (QueueFull, QuotaExceeded):
            if under is not None:
                under.acted = acted
            raise
        return self.job

    async def accepted_before(self) -> bool:
        """Tell whether an earlier try under the same key has become a job; it is this request's job then.

        Raises:
            FailedClosed: the store does not answer.
        """
        if self._jobs is None or self.under is None or not self.under.again:
            return False
        tenant = self._standing.tenant or self._identity.tenant
        self.job = await self._jobs.accepted(tenant, self.under.scope, self._body)
        return self.job is not None

    async def tell(self) -> None:
        """Answer with the job."""
        assert self._jobs is not None
        assert self.job is not None
        try:
            told = await self._jobs.told(self.job, self._gateway.rates, self._gateway.live_replicas())
        except StoreUnavailable:
            told = document(self.job)
        headers = self._exchange.headers
        headers["location"] = f"{PATH}/{self.job.id}"
        headers["retry-after"] = str(come_back_s(told))
        if self.preferred:
            headers[_APPLIED] = RESPOND_ASYNC
        await self._exchange.json(202, json.dumps(told).encode())
