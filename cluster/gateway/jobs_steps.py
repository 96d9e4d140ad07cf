"""What changes a job: each function is one transaction on the store, and keeps the rules between all gateways.

Every step names the state and the fence that it starts from. Where another was faster it changes no row, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, select, update

from cluster.gateway.jobs_rows import (
    ABOUT,
    COME_BACK_S,
    forget_rooms,
    give_room,
    job_of,
    jobs,
    result_of,
    result_values,
    take_room,
)
from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.tables import JOBS
from policies.errors import QuotaExceeded
from policies.work_queue import (
    CANCELLED,
    EXPIRED,
    OVER,
    QUEUED,
    RUNNING,
    WAITED_OUT,
    Job,
    Lease,
    LeaseLost,
    NewJob,
    QueueRules,
    Result,
    when_lost,
)

AT_ONCE: Final = 100
"""Rows that one step tidies at most, so that nothing else waits long for it."""


def put(job: NewJob, rules: QueueRules) -> Callable[[Connection], Job]:
    """Accept a job; return the one that is there already under its id, where there is one."""

    def work(connection: Connection) -> Job:
        if job.tokens > rules.most_tokens_of_tenant:  # told before the column is asked to hold it
            raise QuotaExceeded(
                "the job alone is more than its tenant's share of the queue", retry_after_s=COME_BACK_S
            )
        now = store_now(connection)
        wait_until = now + rules.longest_wait_s
        values = {
            "id": job.id,
            "tenant": job.tenant,
            "service_class": job.service_class,
            "priority": job.priority,
            "work_tokens": job.tokens,
            "request": job.payload,
            "state": QUEUED,
            "reason": "",
            "attempts": 0,
            "owner": "",
            "fence": 0,
            "lease_until": 0.0,
            "not_before": 0.0,
            "cancel_asked": False,
            "created_at": now,
            "wait_until": wait_until,
            "keep_until": wait_until + rules.keep_s,
            **{name: job.about.get(name, "") for name in ABOUT},
        }
        if insert_if_absent(connection, JOBS, values):
            take_room(connection, job.tenant, job.tokens, rules)
        return job_of(connection.execute(jobs().where(JOBS.c.id == job.id)).one())

    return work


def extend(lease: Lease, rules: QueueRules) -> Callable[[Connection], bool]:
    """Keep the lease; tell whether somebody wants the job cancelled."""

    def work(connection: Connection) -> bool:
        until = store_now(connection) + rules.lease_s
        kept = update(JOBS).where(_held(lease)).values(lease_until=until).returning(JOBS.c.cancel_asked)
        row = connection.execute(kept).one_or_none()
        if row is None:
            raise _taken(lease)
        return bool(row.cancel_asked)

    return work


def end(
    lease: Lease, state: str, reason: str, result: Result | None, rules: QueueRules
) -> Callable[[Connection], None]:
    """The job is over; saying the same again changes nothing."""
    if state not in OVER:
        raise ValueError(f"state is {state!r}, it must be one of {', '.join(OVER)}")

    def work(connection: Connection) -> None:
        if _over(connection, _held(lease), state, reason, store_now(connection), rules, result):
            give_room(connection, lease.job.tenant, lease.job.tokens)
            return
        said = select(JOBS.c.id).where(
            JOBS.c.id == lease.job.id, JOBS.c.fence == lease.fence, JOBS.c.state == state
        )
        if connection.execute(said).one_or_none() is None:
            raise _taken(lease)

    return work


def release(
    lease: Lease, reason: str, after_s: float, rules: QueueRules, *, counted: bool
) -> Callable[[Connection], None]:
    """Give a job back that did not come to an end."""

    def work(connection: Connection) -> None:
        row = connection.execute(jobs().where(_held(lease)).with_for_update()).one_or_none()
        if row is None:
            raise _taken(lease)
        attempts = row.attempts if counted else row.attempts - 1
        now = store_now(connection)
        lost(connection, row, rules, now, attempts=attempts, reason=reason, not_before=now + after_s)

    return work


def cancel(tenant: str, job_id: str, rules: QueueRules) -> Callable[[Connection], Job | None]:
    """Cancel a tenant's own job at once while it waits; mark one that is worked on."""

    def work(connection: Connection) -> Job | None:
        own = and_(JOBS.c.id == job_id, JOBS.c.tenant == tenant)
        row = connection.execute(jobs().where(own).with_for_update()).one_or_none()
        if row is None:
            return None
        now = store_now(connection)
        job = job_of(row).seen_at(now)
        if job.state == QUEUED:
            if _over(connection, and_(own, JOBS.c.state == QUEUED), CANCELLED, "", now, rules):
                give_room(connection, tenant, job.tokens)
        elif job.state == RUNNING:
            connection.execute(update(JOBS).where(own, JOBS.c.state == RUNNING).values(cancel_asked=True))
        return job_of(connection.execute(jobs().where(own)).one()).seen_at(now)

    return work


def tidy(rules: QueueRules) -> Callable[[Connection], int]:
    """Let expire what has waited too long, and remove what was kept long enough."""

    def work(connection: Connection) -> int:
        now = store_now(connection)
        late = jobs().where(JOBS.c.state == QUEUED, JOBS.c.attempts == 0, JOBS.c.wait_until <= now)
        changed = 0
        for row in connection.execute(late.limit(AT_ONCE).with_for_update(skip_locked=True)).all():
            still = and_(JOBS.c.id == row.id, JOBS.c.state == QUEUED)
            if _over(connection, still, EXPIRED, WAITED_OUT, now, rules):
                give_room(connection, row.tenant, row.work_tokens)
                changed += 1
        old = select(JOBS.c.id).where(JOBS.c.keep_until <= now, JOBS.c.state.in_(OVER)).limit(AT_ONCE)
        forget_rooms(connection)
        return changed + connection.execute(delete(JOBS).where(JOBS.c.id.in_(old))).rowcount

    return work


def result(tenant: str, job_id: str) -> Callable[[Connection], Result | None]:
    """Return what came of a tenant's own job."""

    def work(connection: Connection) -> Result | None:
        columns = select(JOBS.c.status, JOBS.c.headers, JOBS.c.result)
        row = connection.execute(columns.where(JOBS.c.id == job_id, JOBS.c.tenant == tenant)).one_or_none()
        return None if row is None else result_of(row)

    return work


# --- in common ---------------------------------------------------------------------------------------------


def _held(lease: Lease) -> Any:
    return and_(JOBS.c.id == lease.job.id, JOBS.c.fence == lease.fence, JOBS.c.state == RUNNING)


def _taken(lease: Lease) -> LeaseLost:
    return LeaseLost(f"job {lease.job.id} is no longer held under fence {lease.fence}")


def lost(
    connection: Connection,
    row: Any,
    rules: QueueRules,
    now: float,
    *,
    attempts: int,
    reason: str,
    not_before: float = 0.0,
) -> None:
    """A try has come to no end: the job waits again, or is over."""
    state, why = when_lost(attempts, rules, cancel_asked=row.cancel_asked, reason=reason)
    mine = and_(JOBS.c.id == row.id, JOBS.c.fence == row.fence, JOBS.c.state == RUNNING)
    if state != QUEUED:
        if _over(connection, mine, state, why, now, rules):
            give_room(connection, row.tenant, row.work_tokens)
        return
    connection.execute(
        update(JOBS)
        .where(mine)
        .values(state=QUEUED, reason=why, attempts=attempts, owner="", lease_until=0.0, not_before=not_before)
    )


def _over(
    connection: Connection,
    where: Any,
    state: str,
    reason: str,
    now: float,
    rules: QueueRules,
    result: Result | None = None,
) -> bool:
    """End the jobs that the condition names; tell whether there was one. What was asked is not kept any longer."""
    values = {"state": state, "reason": reason, "owner": "", "ended_at": now, "request": b""}
    values |= {"keep_until": now + rules.keep_s, **result_values(result)}
    return bool(connection.execute(update(JOBS).where(where).values(**values)).rowcount)
