"""Rows of the table ``jobs`` and what they stand for in the rules of the queue."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, case, delete, func, select, update

from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.tables import JOB_ROOMS, JOBS
from policies.errors import QueueFull, QuotaExceeded
from policies.work_queue import Job, QueueRules, Result

ABOUT: Final = ("principal", "key_id", "path", "request_id")
"""What of ``Job.about`` has a column of its own; nothing else is kept."""
EVERYBODY: Final = ""
"""The row of ``job_rooms`` that counts all tenants together. It is taken last in a transaction, so that it is locked
for the length of one commit; only who puts a job in or ends one takes it."""
COME_BACK_S: Final = 30.0
_COLUMNS: Final = tuple(
    JOBS.c[name]
    for name in (
        *("id", "tenant", "priority", "work_tokens", "service_class", "state", "created_at", "wait_until"),
        *("keep_until", "attempts", "reason", "cancel_asked", "started_at", "ended_at", "fence"),
        *ABOUT,
    )
)


def jobs() -> Select[Any]:
    """Return the query for everything of jobs but what is large."""
    return select(*_COLUMNS)


def job_of(row: Row[Any]) -> Job:
    """Return the job of a row of :func:`jobs`."""
    return Job(
        id=row.id,
        tenant=row.tenant,
        priority=row.priority,
        tokens=row.work_tokens,
        service_class=row.service_class,
        state=row.state,
        created_at=row.created_at,
        wait_until=row.wait_until,
        keep_until=row.keep_until,
        attempts=row.attempts,
        reason=row.reason,
        cancel_asked=row.cancel_asked,
        started_at=row.started_at,
        ended_at=row.ended_at,
        about={name: row._mapping[name] for name in ABOUT},
    )


def result_values(result: Result | None) -> dict[str, Any]:
    """Return the columns of a result; none of them where there is none."""
    if result is None:
        return {}
    return {"status": result.status, "headers": json.dumps(dict(result.headers)), "result": result.body}


def result_of(row: Any) -> Result | None:
    """Return the result in a row with ``status``, ``headers`` and ``result``."""
    if row.status is None:
        return None
    return Result(bytes(row.result), row.status, json.loads(row.headers or "{}"))


_HERE = JOB_ROOMS.alias("here")
_LEAST_SERVED: Final = (
    select(func.coalesce(func.min(_HERE.c.served), 0))
    .where(_HERE.c.jobs > 0, _HERE.c.tenant != EVERYBODY)
    .scalar_subquery()
)
_TAKE: Final = (
    update(JOB_ROOMS)
    .where(
        JOB_ROOMS.c.tenant == bindparam("whose"),
        JOB_ROOMS.c.tokens + bindparam("work") <= bindparam("most_tokens"),
        JOB_ROOMS.c.jobs < bindparam("most_jobs"),
    )
    .values(
        jobs=JOB_ROOMS.c.jobs + 1,
        tokens=JOB_ROOMS.c.tokens + bindparam("work"),
        # Who was away is not owed for it.
        served=case(
            ((JOB_ROOMS.c.jobs == 0) & (JOB_ROOMS.c.served < _LEAST_SERVED), _LEAST_SERVED),
            else_=JOB_ROOMS.c.served,
        ),
    )
)
_GIVE: Final = (
    update(JOB_ROOMS)
    .where(JOB_ROOMS.c.tenant == bindparam("whose"))
    .values(jobs=JOB_ROOMS.c.jobs - 1, tokens=JOB_ROOMS.c.tokens - bindparam("work"))
)


_SERVED_MORE: Final = (
    select(_HERE.c.tenant)
    .where(_HERE.c.jobs > 0, _HERE.c.tenant != EVERYBODY, _HERE.c.served < JOB_ROOMS.c.served)
    .exists()
)
_FORGET: Final = delete(JOB_ROOMS).where(
    JOB_ROOMS.c.jobs == 0, JOB_ROOMS.c.tenant != EVERYBODY, ~_SERVED_MORE
)


def take_room(connection: Connection, tenant: str, work: int, rules: QueueRules) -> None:
    """Count a job in; what is over the bounds is refused in the same step in which it would be counted.

    Raises:
        QuotaExceeded: the tenant fills its share.
        QueueFull: there is no room.
    """
    if not _take(connection, tenant, work, rules.most_jobs_of_tenant, rules.most_tokens_of_tenant):
        raise QuotaExceeded("the tenant's jobs fill its share of the queue", retry_after_s=COME_BACK_S)
    if not _take(connection, EVERYBODY, work, rules.most_jobs, rules.most_tokens):
        raise QueueFull("the queue of jobs is full", retry_after_s=COME_BACK_S)


def give_room(connection: Connection, tenant: str, work: int) -> None:
    """Count out a job that is over."""
    for whose in (tenant, EVERYBODY):
        connection.execute(_GIVE, {"whose": whose, "work": work})


def forget_rooms(connection: Connection) -> None:
    """Remove the rows of tenants without jobs that would begin with as much if they came anew.

    In open mode anybody can name a tenant, and the rows would grow for ever.
    """
    connection.execute(_FORGET)


def _take(connection: Connection, whose: str, work: int, most_jobs: int, most_tokens: int) -> bool:
    values = {"whose": whose, "work": work, "most_jobs": most_jobs, "most_tokens": most_tokens}
    if connection.execute(_TAKE, values).rowcount:
        return True
    # There is no room, or no row: another gateway may have made it only now, so it is asked again in either case.
    insert_if_absent(connection, JOB_ROOMS, {"tenant": whose, "jobs": 0, "tokens": 0, "served": 0})
    return bool(connection.execute(_TAKE, values).rowcount)
