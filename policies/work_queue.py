"""Work that waits: the rules of a durable queue, and what a store has to do to keep them.

A job that was accepted ends in exactly one way. Who works on it holds a lease that he extends while he works; a
worker that dies lets it run out, and another takes the job over. The lease carries a fence, a number that grows with
every taking: what a worker says of a job that was taken from him has no effect. So a job can be begun twice and still
has one result. What nobody has room for is refused at the door, not dropped later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

QUEUED: Final = "queued"
RUNNING: Final = "running"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
LIVE: Final = (QUEUED, RUNNING)
OVER: Final = (DONE, FAILED, CANCELLED, EXPIRED)
STATES: Final = (*LIVE, *OVER)
MOST_URGENT: Final = 0


class LeaseLost(Exception):
    """The job is no longer this worker's: its lease ran out and was taken, or the job is over."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Bounds and times; durations in seconds.

    At most ``most_jobs`` are live (waiting or worked on), with at most ``most_tokens`` of work together; one tenant
    fills at most ``tenant_share`` of either. A job that nobody has begun after ``longest_wait_s`` expires. A lease
    lasts ``lease_s``; a job is begun ``most_attempts`` times at most. Each ``age_s`` of waiting raises a job by one
    priority. What is over is kept for ``keep_s``.
    """

    most_jobs: int = 50_000
    most_tokens: int = 20_000_000
    tenant_share: float = 0.5
    longest_wait_s: float = 3600.0
    lease_s: float = 10.0
    most_attempts: int = 3
    age_s: float = 300.0
    keep_s: float = 24 * 3600.0

    def __post_init__(self) -> None:
        for name in ("most_jobs", "most_tokens", "most_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("longest_wait_s", "lease_s", "age_s", "keep_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")
        if not 0 < self.tenant_share <= 1:
            raise ValueError(f"tenant_share is {self.tenant_share}: it must be over 0 and at most 1")

    @property
    def most_jobs_of_tenant(self) -> int:
        """Return how many live jobs one tenant may have."""
        return max(1, int(self.most_jobs * self.tenant_share))

    @property
    def most_tokens_of_tenant(self) -> int:
        """Return how many tokens the live jobs of one tenant may have together."""
        return max(1, int(self.most_tokens * self.tenant_share))


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is to be done later. ``tokens`` is its work, ``about`` whatever its owner wants to find again with it."""

    id: str
    tenant: str
    priority: int
    tokens: int
    payload: bytes = field(repr=False)
    service_class: str = ""
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.id and self.tenant):
            raise ValueError(f"id is {self.id!r}, tenant is {self.tenant!r}: neither may be empty")
        if self.tokens < 0 or self.priority < MOST_URGENT:
            raise ValueError(f"tokens={self.tokens} and priority={self.priority} must be at least 0")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands. Instants are seconds by the store's clock; ``attempts`` is how often it was begun."""

    id: str
    tenant: str
    priority: int
    tokens: int
    service_class: str
    state: str
    created_at: float
    wait_until: float
    keep_until: float
    attempts: int = 0
    reason: str = ""
    cancel_asked: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    about: Mapping[str, str] = field(default_factory=dict)

    def seen_at(self, now: float) -> Job:
        """Return it as it is to be told: one whose wait is over has expired, whether somebody has tidied up or not."""
        waited_out = self.state == QUEUED and self.attempts == 0 and self.wait_until <= now
        return (
            replace(self, state=EXPIRED, reason=WAITED_OUT, ended_at=self.wait_until) if waited_out else self
        )


WAITED_OUT: Final = "it was not done when its longest wait was over"


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job, for whoever fetches it."""

    body: bytes = field(repr=False)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job for ``lease_s`` from when it was given or extended."""

    job: Job
    fence: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting job stands: ``ahead`` jobs are served before it, about; ``tokens`` is their work with its own."""

    ahead: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest waiting job of a tenant in one priority; ``served`` is the work its tenant has been given."""

    tenant: str
    priority: int
    created_at: float
    served: int


def in_turn(heads: Iterable[Head], now: float, rules: QueueRules) -> list[Head]:
    """Return the heads in the order in which they are served: priority raised by age, fair by tenant, then age."""

    def rank(head: Head) -> tuple[int, int, float, str]:
        raised = max(MOST_URGENT, head.priority - int(max(0.0, now - head.created_at) / rules.age_s))
        return raised, head.served, head.created_at, head.tenant

    return sorted(heads, key=rank)


def when_lost(attempts: int, rules: QueueRules, *, cancel_asked: bool, reason: str) -> tuple[str, str]:
    """Return the state and the reason of a job that was begun so often and did not come to an end."""
    if cancel_asked:
        return CANCELLED, ""
    if attempts >= rules.most_attempts:
        return FAILED, f"begun {attempts} times without coming to an end; the last time: {reason}"
    return QUEUED, reason


class WorkQueue(Protocol):
    """A queue that keeps the rules. Each method is one step that happens wholly or not at all.

    The template of an implementation is :class:`policies.memory_queue.MemoryQueue`.
    """

    rules: QueueRules

    async def put(self, job: NewJob) -> Job:
        """Accept a job. One whose id is there already is not accepted twice: the first is returned.

        Raises:
            QuotaExceeded: its tenant fills its share.
            QueueFull: there is no room.
        """
        ...

    async def lease(self, owner: str) -> Lease | None:
        """Hand out the job whose turn it is; None when none may be begun now. Takes over leases that ran out."""
        ...

    async def extend(self, lease: Lease) -> bool:
        """Keep the lease for another ``lease_s``; tell whether somebody wants the job cancelled.

        Raises:
            LeaseLost: it is another's by now.
        """
        ...

    async def end(self, lease: Lease, state: str, reason: str = "", result: Result | None = None) -> None:
        """The job is over, in one of ``OVER``. Saying the same again changes nothing.

        Raises:
            LeaseLost: it is another's by now; nothing has changed.
        """
        ...

    async def release(self, lease: Lease, reason: str, *, after_s: float = 0.0, counted: bool = True) -> None:
        """Give a job back that did not come to an end, to be begun again after ``after_s``.

        A try that is ``counted`` uses up one of the attempts; after the last one the job has failed.

        Raises:
            LeaseLost: it is another's by now; nothing has changed.
        """
        ...

    async def cancel(self, tenant: str, job_id: str) -> Job | None:
        """Cancel a job: at once while it waits; one that is worked on is marked, for its worker to end it."""
        ...

    async def get(self, tenant: str, job_id: str) -> Job | None:
        """Return a tenant's own job; None where it has none of that id, whoever else has."""
        ...

    async def place(self, job: Job) -> Place:
        """Return where a waiting job stands."""
        ...

    async def result(self, tenant: str, job_id: str) -> Result | None:
        """Return what came of a tenant's own job; None where nothing did, or it is not kept any more."""
        ...

    async def page(
        self,
        tenant: str,
        limit: int,
        before: tuple[float, str] | None = None,
        *,
        about: Mapping[str, str] | None = None,
    ) -> Sequence[Job]:
        """Return a tenant's own jobs, newest first, those alone with what ``about`` names.

        ``before`` is instant and id of the last one of the page before.
        """
        ...

    async def tidy(self) -> int:
        """Let expire what has waited too long, and remove what was kept long enough; return how many."""
        ...
