"""The durable queue's rules in memory: for tests, for one process, and as the template of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from policies.clock import Clock, SystemClock
from policies.errors import QueueFull, QuotaExceeded
from policies.work_queue import (
    CANCELLED,
    EXPIRED,
    LIVE,
    OVER,
    QUEUED,
    RUNNING,
    WAITED_OUT,
    Head,
    Job,
    Lease,
    LeaseLost,
    NewJob,
    Place,
    QueueRules,
    Result,
    in_turn,
    when_lost,
)

COME_BACK_S = 30.0


@dataclass(slots=True)
class _Entry:
    job: Job
    payload: bytes
    fence: int = 0
    lease_until: float = 0.0
    not_before: float = 0.0
    result: Result | None = None


class MemoryQueue:
    """A queue that lasts as long as its process (:class:`policies.work_queue.WorkQueue`)."""

    def __init__(self, rules: QueueRules | None = None, *, clock: Clock | None = None) -> None:
        self.rules = rules or QueueRules()
        self._clock = clock or SystemClock()
        self._entries: dict[str, _Entry] = {}
        self._served: dict[str, int] = defaultdict(int)

    async def put(self, job: NewJob) -> Job:
        if (there := self._entries.get(job.id)) is not None:
            return there.job
        rules, now = self.rules, self._clock.now()
        own = [one for one in self._live() if one.tenant == job.tenant]
        if len(own) >= rules.most_jobs_of_tenant or _tokens(own) + job.tokens > rules.most_tokens_of_tenant:
            raise QuotaExceeded("the tenant's jobs fill its share of the queue", retry_after_s=COME_BACK_S)
        live = self._live()
        if len(live) >= rules.most_jobs or _tokens(live) + job.tokens > rules.most_tokens:
            raise QueueFull("the queue of jobs is full", retry_after_s=COME_BACK_S)
        if not own:  # who was away is not owed for it
            others = [self._served[one.tenant] for one in live]
            self._served[job.tenant] = max(self._served[job.tenant], min(others, default=0))
        wait_until = now + rules.longest_wait_s
        made = Job(
            job.id,
            job.tenant,
            job.priority,
            job.tokens,
            job.service_class,
            QUEUED,
            created_at=now,
            wait_until=wait_until,
            keep_until=wait_until + rules.keep_s,
            about=dict(job.about),
        )
        self._entries[job.id] = _Entry(made, job.payload)
        return made

    async def lease(self, owner: str) -> Lease | None:
        now = self._clock.now()
        for entry in self._entries.values():
            if entry.job.state == RUNNING and entry.lease_until <= now:
                self._lost(entry, "its worker was lost", now)
        waiting = [
            one
            for one in self._entries.values()
            if one.job.seen_at(now).state == QUEUED and one.not_before <= now
        ]
        waiting.sort(key=lambda one: (one.job.created_at, one.job.id))
        first: dict[tuple[str, int], _Entry] = {}
        for one in waiting:
            first.setdefault((one.job.tenant, one.job.priority), one)
        heads = [
            Head(tenant, priority, one.job.created_at, self._served[tenant])
            for (tenant, priority), one in first.items()
        ]
        for head in in_turn(heads, now, self.rules):
            entry = first[head.tenant, head.priority]
            entry.fence += 1
            entry.lease_until = now + self.rules.lease_s
            self._served[head.tenant] += entry.job.tokens
            entry.job = replace(
                entry.job,
                state=RUNNING,
                attempts=entry.job.attempts + 1,
                started_at=now if entry.job.started_at is None else entry.job.started_at,
            )
            return Lease(entry.job, entry.fence, entry.payload)
        return None

    async def extend(self, lease: Lease) -> bool:
        entry = self._held(lease)
        entry.lease_until = self._clock.now() + self.rules.lease_s
        return entry.job.cancel_asked

    async def end(self, lease: Lease, state: str, reason: str = "", result: Result | None = None) -> None:
        if state not in OVER:
            raise ValueError(f"state is {state!r}, it must be one of {', '.join(OVER)}")
        entry = self._entries.get(lease.job.id)
        if entry is not None and entry.fence == lease.fence and entry.job.state == state:
            return
        entry = self._held(lease)
        entry.result = result
        self._over(entry, state, reason, self._clock.now())

    async def release(self, lease: Lease, reason: str, *, after_s: float = 0.0, counted: bool = True) -> None:
        entry, now = self._held(lease), self._clock.now()
        if not counted:
            entry.job = replace(entry.job, attempts=entry.job.attempts - 1)
        self._lost(entry, reason, now)
        entry.not_before = now + after_s

    async def cancel(self, tenant: str, job_id: str) -> Job | None:
        if (entry := self._own(tenant, job_id)) is None:
            return None
        now = self._clock.now()
        entry.job = entry.job.seen_at(now)
        if entry.job.state == QUEUED:
            self._over(entry, CANCELLED, "", now)
        elif entry.job.state == RUNNING:
            entry.job = replace(entry.job, cancel_asked=True)
        return entry.job

    async def get(self, tenant: str, job_id: str) -> Job | None:
        entry = self._own(tenant, job_id)
        return None if entry is None else entry.job.seen_at(self._clock.now())

    async def place(self, job: Job) -> Place:
        key = (job.priority, job.created_at, job.id)
        ahead = [
            one
            for one in self._live()
            if one.state == QUEUED and (one.priority, one.created_at, one.id) < key
        ]
        return Place(len(ahead), _tokens(ahead) + job.tokens)

    async def result(self, tenant: str, job_id: str) -> Result | None:
        entry = self._own(tenant, job_id)
        return None if entry is None else entry.result

    async def page(
        self,
        tenant: str,
        limit: int,
        before: tuple[float, str] | None = None,
        *,
        about: Mapping[str, str] | None = None,
    ) -> Sequence[Job]:
        now, wanted = self._clock.now(), (about or {}).items()
        own = [
            one.job.seen_at(now)
            for one in self._entries.values()
            if one.job.tenant == tenant and wanted <= one.job.about.items()
        ]
        own.sort(key=lambda one: (one.created_at, one.id), reverse=True)
        return [one for one in own if before is None or (one.created_at, one.id) < before][:limit]

    async def tidy(self) -> int:
        now = self._clock.now()

        def waited_out(entry: _Entry) -> bool:
            return entry.job.state == QUEUED and entry.job.seen_at(now).state == EXPIRED

        def kept(entry: _Entry) -> bool:
            return entry.job.state in OVER and entry.job.keep_until <= now

        expired, old = self._those(waited_out), self._those(kept)
        for entry in expired:
            self._over(entry, EXPIRED, WAITED_OUT, now)
        for entry in old:
            del self._entries[entry.job.id]
        return len(expired) + len(old)

    # --- in common ---------------------------------------------------------------------------------------

    def _those(self, wanted: Callable[[_Entry], bool]) -> list[_Entry]:
        return [one for one in self._entries.values() if wanted(one)]

    def _live(self) -> list[Job]:
        return [one.job for one in self._entries.values() if one.job.state in LIVE]

    def _own(self, tenant: str, job_id: str) -> _Entry | None:
        entry = self._entries.get(job_id)
        return entry if entry is not None and entry.job.tenant == tenant else None

    def _held(self, lease: Lease) -> _Entry:
        entry = self._entries.get(lease.job.id)
        if entry is None or entry.fence != lease.fence or entry.job.state != RUNNING:
            raise LeaseLost(f"job {lease.job.id} is no longer held under fence {lease.fence}")
        return entry

    def _lost(self, entry: _Entry, reason: str, now: float) -> None:
        job = entry.job
        state, why = when_lost(job.attempts, self.rules, cancel_asked=job.cancel_asked, reason=reason)
        if state == QUEUED:
            entry.job = replace(job, state=QUEUED, reason=why)
        else:
            self._over(entry, state, why, now)

    def _over(self, entry: _Entry, state: str, reason: str, now: float) -> None:
        keep_until = now + self.rules.keep_s
        entry.payload = b""
        entry.job = replace(entry.job, state=state, reason=reason, ended_at=now, keep_until=keep_until)


def _tokens(jobs: Sequence[Job]) -> int:
    return sum(one.tokens for one in jobs)
