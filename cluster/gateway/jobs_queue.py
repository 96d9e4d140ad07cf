"""The durable queue of jobs on the SQL store (:class:`policies.work_queue.WorkQueue`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, or_, select

from cluster.gateway import jobs_steps as steps
from cluster.gateway.jobs_lease import lease as lease_next
from cluster.gateway.jobs_rows import EVERYBODY, job_of, jobs
from cluster.gateway.store.portable import store_now
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import JOB_ROOMS, JOBS
from policies.work_queue import LIVE, QUEUED, Job, Lease, NewJob, Place, QueueRules, Result


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs of a class are in a state, and since when the oldest has been there, in seconds."""

    state: str
    service_class: str
    jobs: int
    oldest_s: float


class SqlQueue:
    """The queue. Any number of gateways use one store.

    Every method raises ``StoreUnavailable`` where the store does not answer; what was asked may then have happened.
    """

    def __init__(self, store: Store, rules: QueueRules | None = None) -> None:
        self.rules = rules or QueueRules()
        self._store = store

    async def put(self, job: NewJob) -> Job:
        return await self._store.write(steps.put(job, self.rules))

    async def lease(self, owner: str) -> Lease | None:
        return await self._store.write(lease_next(owner, self.rules))

    async def extend(self, lease: Lease) -> bool:
        return await self._store.write(steps.extend(lease, self.rules))

    async def end(self, lease: Lease, state: str, reason: str = "", result: Result | None = None) -> None:
        await self._store.write(steps.end(lease, state, reason, result, self.rules))

    async def release(self, lease: Lease, reason: str, *, after_s: float = 0.0, counted: bool = True) -> None:
        await self._store.write(steps.release(lease, reason, after_s, self.rules, counted=counted))

    async def cancel(self, tenant: str, job_id: str) -> Job | None:
        return await self._store.write(steps.cancel(tenant, job_id, self.rules))

    async def tidy(self) -> int:
        return await self._store.write(steps.tidy(self.rules))

    async def result(self, tenant: str, job_id: str) -> Result | None:
        return await self._store.read(steps.result(tenant, job_id))

    async def get(self, tenant: str, job_id: str) -> Job | None:
        def work(connection: Connection) -> Job | None:
            row = connection.execute(jobs().where(JOBS.c.id == job_id, JOBS.c.tenant == tenant)).one_or_none()
            return None if row is None else job_of(row).seen_at(store_now(connection))

        return await self._store.read(work)

    async def place(self, job: Job) -> Place:
        """Return where a waiting job stands; the work ahead is that of as many mean jobs, which needs no sum."""

        def work(connection: Connection) -> Place:
            sooner = JOBS.c.created_at < job.created_at
            same = or_(sooner, (JOBS.c.created_at == job.created_at) & (JOBS.c.id < job.id))
            before = or_(JOBS.c.priority < job.priority, (JOBS.c.priority == job.priority) & same)
            count = select(func.count()).select_from(JOBS).where(JOBS.c.state == QUEUED, before)
            ahead = connection.execute(count).scalar_one()
            room = connection.execute(
                select(JOB_ROOMS.c.jobs, JOB_ROOMS.c.tokens).where(JOB_ROOMS.c.tenant == EVERYBODY)
            ).one_or_none()
            mean = room.tokens / room.jobs if room is not None and room.jobs else 0.0
            return Place(ahead, round(ahead * mean) + job.tokens)

        return await self._store.read(work)

    async def page(
        self,
        tenant: str,
        limit: int,
        before: tuple[float, str] | None = None,
        *,
        about: Mapping[str, str] | None = None,
    ) -> Sequence[Job]:
        def work(connection: Connection) -> list[Job]:
            now = store_now(connection)
            only = [JOBS.c[name] == value for name, value in (about or {}).items()]
            query = jobs().where(JOBS.c.tenant == tenant, *only)
            if before is not None:
                at, job_id = before
                older = (JOBS.c.created_at == at) & (JOBS.c.id < job_id)
                query = query.where(or_(JOBS.c.created_at < at, older))
            query = query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc()).limit(limit)
            return [job_of(row).seen_at(now) for row in connection.execute(query)]

        return await self._store.read(work)

    async def counts(self) -> list[Count]:
        """Return how many jobs of each class wait and are worked on."""

        def work(connection: Connection) -> list[Count]:
            now = store_now(connection)
            columns = (JOBS.c.state, JOBS.c.service_class)
            query = select(*columns, func.count().label("live"), func.min(JOBS.c.created_at).label("since"))
            rows = connection.execute(query.where(JOBS.c.state.in_(LIVE)).group_by(*columns))
            return [Count(row.state, row.service_class, row.live, max(0.0, now - row.since)) for row in rows]

        return await self._store.read(work)
