"""Works jobs off, from what callers leave: each gateway takes one at a time while there is room.

A job is begun only where no caller would wait for it, and given back as soon as one does. While it is worked on its
lease is extended; whoever loses it drops the work, because another has it by now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from starlette.types import ASGIApp

from cluster.gateway.identity import Identity
from cluster.gateway.jobs import Jobs
from cluster.gateway.jobs_headroom import Spare, has_room, someone_waits
from cluster.gateway.jobs_run import ENTITLEMENT_REVOKED, Verdict, do, judge, request_id_of
from cluster.gateway.service import Gateway
from cluster.gateway.store.store import StoreUnavailable
from policies.errors import FailedClosed
from policies.work_queue import CANCELLED, FAILED, QUEUED, Job, Lease, LeaseLost, Result

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

IDLE_S: Final = 1.0
"""How often the store is asked while there is nothing to do; a job that this gateway accepts is begun at once."""
_LOOK_S: Final = 0.05
"""How often it is looked whether there is room; that asks nobody."""
_MADE_WAY: Final = "made way for callers"
_ENDING: Final = "its gateway was ending"


class JobRunner:
    """The worker of one gateway.

    Args:
        apps: who answers the requests of each path.
        told: told of each way in which a try of a job has ended: a state, or ``again`` or ``later``.
    """

    def __init__(
        self,
        gateway: Gateway,
        jobs: Jobs,
        apps: Mapping[str, ASGIApp],
        *,
        spare: Spare | None = None,
        told: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._gateway = gateway
        self._jobs = jobs
        self._apps = dict(apps)
        self._spare = spare or Spare()
        self._told = told
        self._owner = f"gateway-{uuid.uuid4().hex[:16]}"
        self._running: dict[str, asyncio.Task[None]] = {}
        self._requests: dict[str, str] = {}
        """By job, the request that it makes."""
        self._cancelled: set[str] = set()
        self._away = False
        jobs.on_cancel = self._cancel_soon

    def __len__(self) -> int:
        """Return the number of jobs that are worked on here."""
        return len(self._running)

    async def run(self) -> None:
        """Work until cancelled; then give back what was not done."""
        try:
            while True:
                if not has_room(self._gateway, self._spare, self._begun()):
                    self._make_way()
                    await self._wait(_LOOK_S)
                elif (lease := await self._lease()) is not None:
                    self._begin(lease)
                    await asyncio.sleep(0)  # a task that is cancelled before it began gives nothing back
                else:
                    await self._wait(IDLE_S)
        finally:
            await self._stop(list(self._running.values()))

    # --- taking ------------------------------------------------------------------------------------------

    async def _lease(self) -> Lease | None:
        try:
            lease = await self._jobs.queue.lease(self._owner)
        except StoreUnavailable as error:
            if not self._away:
                _LOG.warning("no job can be taken: %s", error)
            self._away = True
            return None
        except Exception:
            _LOG.exception("no job can be taken; it is tried again")
            return None
        self._away = False
        return lease

    def _begin(self, lease: Lease) -> None:
        task = asyncio.create_task(self._work(lease))
        self._running[lease.job.id] = task
        self._requests[lease.job.id] = request_id_of(lease.job)
        task.add_done_callback(lambda _: self._ended(lease.job.id))

    def _begun(self) -> int:
        """Return how many jobs will make a call that nobody has counted yet: two would share its room."""
        calls = self._gateway.calls
        return sum(request not in calls for request in self._requests.values())

    def _ended(self, job_id: str) -> None:
        del self._running[job_id]
        del self._requests[job_id]
        self._cancelled.discard(job_id)
        self._jobs.news.set()  # there may be room for the next

    def _make_way(self) -> None:
        """Give the youngest job back where callers wait; one at a look, because that may be enough."""
        if self._running and someone_waits(self._gateway):
            youngest = list(self._running.values())[-1]
            _cancel_once(youngest, _MADE_WAY)

    def _cancel_soon(self, job_id: str) -> None:
        task = self._running.get(job_id)
        if task is not None:
            self._cancelled.add(job_id)
            _cancel_once(task)

    async def _wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._jobs.news.wait()
        self._jobs.news.clear()

    @staticmethod
    async def _stop(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            _cancel_once(task, _ENDING)
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one job -----------------------------------------------------------------------------------------

    async def _work(self, lease: Lease) -> None:
        """Do a job under its lease, and say what became of it; a lease that was lost ends the work at once."""
        work = asyncio.ensure_future(self._try(lease))
        beat = asyncio.ensure_future(self._beat(lease))
        try:
            await asyncio.wait((work, beat), return_when=asyncio.FIRST_COMPLETED)
            verdict = work.result() if work.done() else beat.result()
            await _end(work)
            if verdict is not None:
                await self._settle(lease, verdict)
        except asyncio.CancelledError as error:
            await _end(work)
            await self._settle(lease, self._given_up(lease.job, str(error)))
        except Exception:
            _LOG.exception("job %s failed in the gateway itself", lease.job.id)
            await self._settle(lease, Verdict(QUEUED, "internal_error", after_s=1.0))
        finally:
            await _end(work, beat)

    def _given_up(self, job: Job, why: str) -> Verdict:
        if job.id in self._cancelled:
            return Verdict(CANCELLED)
        return Verdict(QUEUED, why or _ENDING, counted=False)

    async def _try(self, lease: Lease) -> Verdict:
        job = lease.job
        try:
            identity = self._gateway.tenants.of_key(job.about["key_id"])
        except FailedClosed as error:
            return Verdict(QUEUED, error.code, after_s=error.retry_after_s, counted=False)
        if identity is None or not self._still(identity, job):
            return Verdict(FAILED, ENTITLEMENT_REVOKED)
        app = self._apps.get(job.about["path"])
        if app is None:
            return Verdict(FAILED, f"nobody answers {job.about['path']} here")
        result: Result = await do(app, lease, identity)
        return judge(result, job.attempts)

    def _still(self, identity: Identity, job: Job) -> bool:
        """Tell whether it is still the same caller; in open mode a tenant is its caller's own word."""
        if identity.open:
            return not job.about["key_id"]
        return (identity.tenant, identity.principal) == (job.tenant, job.about["principal"])

    async def _beat(self, lease: Lease) -> Verdict | None:
        """Extend the lease until that fails (None: it is another's by now), or somebody wants the job cancelled."""
        clock, lease_s = self._gateway.clock, self._jobs.queue.rules.lease_s
        until = clock.now() + lease_s
        while True:
            await clock.sleep(lease_s / 4)
            asked_at = clock.now()
            try:
                if await self._jobs.queue.extend(lease):
                    return Verdict(CANCELLED)
                until = asked_at + lease_s
            except LeaseLost:
                return None
            except StoreUnavailable:
                if clock.now() >= until:
                    return None

    async def _settle(self, lease: Lease, verdict: Verdict) -> None:
        queue = self._jobs.queue
        if verdict.state == QUEUED:
            done = await self._persist(
                lambda: queue.release(lease, verdict.reason, after_s=verdict.after_s, counted=verdict.counted)
            )
            outcome = "again" if verdict.counted else "later"
        else:
            done = await self._persist(
                lambda: queue.end(lease, verdict.state, verdict.reason, verdict.result)
            )
            outcome = verdict.state
        if done:
            self._told(outcome)

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Have a step stand in the store, for as long as the lease could last; tell whether it does."""
        clock = self._gateway.clock
        until = clock.now() + self._jobs.queue.rules.lease_s
        while True:
            try:
                await step()
                return True
            except LeaseLost:
                return False
            except StoreUnavailable as error:
                if clock.now() >= until:
                    _LOG.warning(
                        "what became of a job could not be recorded, it will be begun again: %s", error
                    )
                    return False
            await clock.sleep(0.2)


def _cancel_once(task: asyncio.Task[None], why: str | None = None) -> None:
    """Cancel it unless it is being given back already: that must come to its end, or the try counts as lost."""
    if not task.cancelling():
        task.cancel(why)


async def _end(*tasks: asyncio.Future[T] | asyncio.Future[Verdict] | asyncio.Future[Verdict | None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
