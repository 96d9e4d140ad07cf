"""Accepts what is to be done later, and tells how it stands."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from cluster.gateway.identity import OPERATOR, Identity
from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.standing import Standing
from cluster.gateway.store.store import StoreUnavailable
from policies.errors import FailedClosed
from policies.priority import Priority
from policies.rates import Rates
from policies.work import Work
from policies.work_queue import OVER, QUEUED, RUNNING, Job, NewJob

PATH: Final = "/v1/jobs"
_STREAMED: Final = ("stream", "stream_options")
_LONGEST_POLL_S: Final = 60.0
_LEAST_SPARE: Final = 0.05
_NO_STORE: Final = "the store of jobs does not answer; nothing is known to have changed"


class Jobs:
    """The jobs of this gateway's store.

    ``news`` is set when a job may have become free to begin. ``on_cancel`` is told of each job that is to be
    cancelled while somebody works on it.
    """

    def __init__(self, queue: SqlQueue) -> None:
        self.queue = queue
        self.news = asyncio.Event()
        self.on_cancel: Callable[[str], None] = lambda job_id: None
        self.on_accepted: Callable[[], None] = lambda: None

    async def aclose(self) -> None:
        """Nothing waits here: what was accepted is in the store."""

    async def accept(
        self,
        identity: Identity,
        standing: Standing,
        *,
        path: str,
        body: Mapping[str, Any],
        work: Work,
        request_id: str,
        claim: str | None,
    ) -> Job:
        """Put a request into the queue; it is on disk when this returns.

        ``claim`` is the scope of its idempotency key: the same key is the same job, whatever happened in between.

        Raises:
            QueueFull: there is no room, or not for this tenant (QuotaExceeded).
            FailedClosed: the store does not answer.
        """
        payload = _payload(body)
        job = NewJob(
            id=f"job-{uuid.uuid4().hex}" if claim is None else _id_under(claim, payload),
            tenant=standing.tenant or identity.tenant,
            priority=int(standing.priority),
            tokens=work.tokens,
            payload=payload,
            service_class=standing.service_class,
            about={
                "principal": identity.principal,
                "key_id": identity.key_id,
                "path": path,
                "request_id": request_id,
            },
        )
        try:
            accepted = await self.queue.put(job)
        except StoreUnavailable as error:
            raise unavailable() from error
        self.on_accepted()
        self.news.set()
        return accepted

    async def accepted(self, tenant: str, claim: str, body: Mapping[str, Any]) -> Job | None:
        """Return the job that an earlier try under the same key has become; None where there is none.

        Raises:
            FailedClosed: the store does not answer.
        """
        try:
            return await self.queue.get(tenant, _id_under(claim, _payload(body)))
        except StoreUnavailable as error:
            raise unavailable() from error

    async def cancel(self, job: Job) -> Job | None:
        """Cancel a job; None when it is not there any more."""
        try:
            cancelled = await self.queue.cancel(job.tenant, job.id)
        except StoreUnavailable as error:
            raise unavailable() from error
        if cancelled is not None and cancelled.state == RUNNING:
            self.on_cancel(job.id)
        return cancelled

    async def told(self, job: Job, rates: Rates, live: int) -> dict[str, Any]:
        """Return a job as its owner is told of it, with its place and an estimate while it waits."""
        if job.state != QUEUED:
            return document(job)
        place = await self.queue.place(job)
        return document(job) | {
            "position": place.ahead + 1,
            "estimate_s": estimate_s(place.tokens, rates, live),
        }


def unavailable() -> FailedClosed:
    """Return the error of a store that does not answer."""
    return FailedClosed(_NO_STORE, what="jobs")


def may_see(identity: Identity, job: Job) -> bool:
    """Tell whether a job of their own tenant is theirs to see."""
    return job.about.get("principal") == identity.principal or OPERATOR in identity.roles


def document(job: Job) -> dict[str, Any]:
    """Return a job as a client sees it. Instants are seconds since the epoch."""
    told = {
        "id": job.id,
        "object": "job",
        "status": job.state,
        "path": job.about.get("path", ""),
        "class": job.service_class,
        "priority": Priority(job.priority).label,
        "request_id": job.about.get("request_id", ""),
        "attempts": job.attempts,
        "created_at": round(job.created_at, 3),
        "started_at": None if job.started_at is None else round(job.started_at, 3),
        "ended_at": None if job.ended_at is None else round(job.ended_at, 3),
    }
    if job.reason:
        told["reason"] = job.reason
    if job.state == RUNNING and job.cancel_asked:
        told["cancelling"] = True
    if job.state == QUEUED:
        told["expires_at"] = round(job.wait_until, 3)
    if job.state in OVER:
        told["kept_until"] = round(job.keep_until, 3)
    return told


def estimate_s(tokens: int, rates: Rates, live: int) -> float | None:
    """Return the seconds until so much queued work is done with what is spare now, about; None when nobody works."""
    if live <= 0:
        return None
    spare = min(1.0, max(_LEAST_SPARE, rates.headroom(live)))
    return round(tokens / (rates.decode_tokens_per_s * live * spare), 1)


def come_back_s(told: Mapping[str, Any]) -> int:
    """Return after how many seconds it is of use to look again."""
    estimate = told.get("estimate_s")
    return max(1, math.ceil(min(_LONGEST_POLL_S, (estimate or 0.0) / 2)))


def _payload(body: Mapping[str, Any]) -> bytes:
    asked = {name: value for name, value in body.items() if name not in _STREAMED}
    return json.dumps(asked, ensure_ascii=False).encode()


def _id_under(claim: str, payload: bytes) -> str:
    """Return the id of the job of a request with a key; a key that has expired can come back with another request."""
    digest = hashlib.sha256(f"job under key\n{claim}\n".encode() + payload)
    return f"job-{digest.hexdigest()[:32]}"
