"""Whose turn it is in the queue of jobs, and the one step that hands a job out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, and_, or_, select, update

from cluster.gateway.jobs_rows import EVERYBODY, job_of, jobs
from cluster.gateway.jobs_steps import AT_ONCE, lost
from cluster.gateway.store.portable import store_now
from cluster.gateway.store.tables import JOB_ROOMS, JOBS
from policies.priority import Priority
from policies.work_queue import QUEUED, RUNNING, Head, Lease, QueueRules, in_turn


def lease(owner: str, rules: QueueRules) -> Callable[[Connection], Lease | None]:
    """Hand out the job whose turn it is, after taking back what was leased to workers that are gone."""

    def work(connection: Connection) -> Lease | None:
        now = store_now(connection)
        gone = jobs().where(JOBS.c.state == RUNNING, JOBS.c.lease_until <= now).limit(AT_ONCE)
        for row in connection.execute(gone.with_for_update(skip_locked=True)).all():
            lost(connection, row, rules, now, attempts=row.attempts, reason="its worker was lost")
        heads = [
            Head(row.tenant, int(priority), row._mapping[f"head_{int(priority)}"], row.served)
            for row in connection.execute(_heads(now)).all()
            for priority in Priority
            if row._mapping[f"head_{int(priority)}"] is not None
        ]
        for head in in_turn(heads, now, rules):
            leased = _take(connection, head, owner, now, rules)
            if leased is not None:
                return leased
        return None

    return work


def _waiting(now: float) -> Any:
    """Return the condition on jobs that may be begun."""
    not_waited_out = or_(JOBS.c.attempts > 0, JOBS.c.wait_until > now)
    return and_(JOBS.c.state == QUEUED, JOBS.c.not_before <= now, not_waited_out)


def _heads(now: float) -> Any:
    """Return the query for when the oldest job was put in, by tenant and priority: a look at an index for each."""
    oldest = [
        select(JOBS.c.created_at)
        .where(_waiting(now), JOBS.c.tenant == JOB_ROOMS.c.tenant, JOBS.c.priority == int(priority))
        .order_by(JOBS.c.created_at)
        .limit(1)
        .scalar_subquery()
        .label(f"head_{int(priority)}")
        for priority in Priority
    ]
    rooms = JOB_ROOMS.c
    return select(rooms.tenant, rooms.served, *oldest).where(rooms.jobs > 0, rooms.tenant != EVERYBODY)


def _take(connection: Connection, head: Head, owner: str, now: float, rules: QueueRules) -> Lease | None:
    """Lease the oldest job of that tenant and priority that no other gateway is just taking."""
    row = connection.execute(
        jobs()
        .add_columns(JOBS.c.request)
        .where(_waiting(now), JOBS.c.tenant == head.tenant, JOBS.c.priority == head.priority)
        .order_by(JOBS.c.created_at, JOBS.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).one_or_none()
    if row is None:
        return None
    fence = row.fence + 1
    taken = connection.execute(
        update(JOBS)
        .where(JOBS.c.id == row.id, JOBS.c.state == QUEUED, JOBS.c.fence == row.fence)
        .values(
            state=RUNNING,
            owner=owner,
            fence=fence,
            lease_until=now + rules.lease_s,
            attempts=row.attempts + 1,
            started_at=now if row.started_at is None else row.started_at,
        )
    )
    if not taken.rowcount:
        return None
    served = JOB_ROOMS.c.served + row.work_tokens
    connection.execute(update(JOB_ROOMS).where(JOB_ROOMS.c.tenant == row.tenant).values(served=served))
    payload = bytes(row.request)
    return Lease(job_of(connection.execute(jobs().where(JOBS.c.id == row.id)).one()), fence, payload)
