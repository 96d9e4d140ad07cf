"""Whose turn it is in the queue of jobs, and the one step that hands a job out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Float, and_, bindparam, func, or_, select, update

from cluster.gateway.jobs_rows import EVERYBODY, job_of, jobs
from cluster.gateway.jobs_steps import AT_ONCE, lost
from cluster.gateway.store.portable import store_now
from cluster.gateway.store.tables import JOB_ROOMS, JOBS
from policies.priority import Priority
from policies.work_queue import QUEUED, RUNNING, Head, Lease, QueueRules, in_turn

# Built once: these are asked for every job, and building them costs more than answering them.
_NOW: Final = bindparam("now", type_=Float)
_GONE: Final = (
    jobs()
    .where(JOBS.c.state == RUNNING, JOBS.c.lease_until <= _NOW)
    .limit(AT_ONCE)
    .with_for_update(skip_locked=True)
)
_WAITING: Final = and_(
    JOBS.c.state == QUEUED, JOBS.c.not_before <= _NOW, or_(JOBS.c.attempts > 0, JOBS.c.wait_until > _NOW)
)
"""Jobs that may be begun."""


def _oldest(priority: int) -> Any:
    """Return the query for when the oldest waiting job was put in, by tenant: one look at an index."""
    return (
        select(JOBS.c.created_at)
        .where(_WAITING, JOBS.c.tenant == JOB_ROOMS.c.tenant, JOBS.c.priority == priority)
        .order_by(JOBS.c.created_at)
        .limit(1)
        .scalar_subquery()
    )


_HEADS: Final = select(JOB_ROOMS.c.tenant, JOB_ROOMS.c.served, *map(_oldest, map(int, Priority))).where(
    JOB_ROOMS.c.jobs > 0, JOB_ROOMS.c.tenant != EVERYBODY
)
_NEXT: Final = (
    jobs()
    .add_columns(JOBS.c.request)
    .where(_WAITING, JOBS.c.tenant == bindparam("whose"), JOBS.c.priority == bindparam("urgency"))
    .order_by(JOBS.c.created_at, JOBS.c.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
_BEGIN: Final = (
    update(JOBS)
    .where(JOBS.c.id == bindparam("job"), JOBS.c.state == QUEUED, JOBS.c.fence == bindparam("before"))
    .values(
        state=RUNNING,
        owner=bindparam("worker"),
        fence=JOBS.c.fence + 1,
        lease_until=bindparam("until"),
        attempts=JOBS.c.attempts + 1,
        started_at=func.coalesce(JOBS.c.started_at, _NOW),
    )
)
_CHARGE: Final = (
    update(JOB_ROOMS)
    .where(JOB_ROOMS.c.tenant == bindparam("whose"))
    .values(served=JOB_ROOMS.c.served + bindparam("work"))
)


def lease(owner: str, rules: QueueRules) -> Callable[[Connection], Lease | None]:
    """Hand out the job whose turn it is, after taking back what was leased to workers that are gone."""

    def work(connection: Connection) -> Lease | None:
        now = store_now(connection)
        for row in connection.execute(_GONE, {"now": now}).all():
            lost(connection, row, rules, now, attempts=row.attempts, reason="its worker was lost")
        heads = [
            Head(row[0], priority, since, row[1])
            for row in connection.execute(_HEADS, {"now": now}).all()
            for priority, since in enumerate(row[2:])
            if since is not None
        ]
        for head in in_turn(heads, now, rules):
            leased = _take(connection, head, owner, now, rules)
            if leased is not None:
                return leased
        return None

    return work


def _take(connection: Connection, head: Head, owner: str, now: float, rules: QueueRules) -> Lease | None:
    """Lease the oldest job of that tenant and priority that no other gateway is just taking."""
    which = {"now": now, "whose": head.tenant, "urgency": head.priority}
    row = connection.execute(_NEXT, which).one_or_none()
    if row is None:
        return None
    begin = {"job": row.id, "before": row.fence, "worker": owner, "until": now + rules.lease_s, "now": now}
    if not connection.execute(_BEGIN, begin).rowcount:
        return None
    connection.execute(_CHARGE, {"whose": row.tenant, "work": row.work_tokens})
    began = now if row.started_at is None else row.started_at
    job = replace(job_of(row), state=RUNNING, attempts=row.attempts + 1, started_at=began)
    return Lease(job, row.fence + 1, bytes(row.request))
