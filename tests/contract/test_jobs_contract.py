"""The queue of jobs on SQLite and on PostgreSQL: the same rules, and several processes at once."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.jobs_rows import EVERYBODY
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import JOB_ROOMS
from policies.errors import QuotaExceeded
from policies.work_queue import DONE, NewJob, QueueRules
from tests.fakes.gateway import rig
from tests.fakes.work_queue_contract import Make, WorkQueueContract


class TestSqlQueue(WorkQueueContract):
    @pytest.fixture
    def make(self, store: Store) -> Make:
        return lambda rules: SqlQueue(store, rules)


def job(name: str, tenant: str, tokens: int = 1) -> NewJob:
    return NewJob(name, tenant, 0, tokens, b"{}")


async def test_a_job_too_large_for_any_column_is_refused_as_one_too_large_for_the_queue(store: Store) -> None:
    """Many short prompts, many choices of each: a body of a megabyte can ask for more than 2^31 tokens."""
    with pytest.raises(QuotaExceeded):
        await SqlQueue(store).put(job("j", "t", 10**12))


async def test_tenants_without_jobs_leave_no_rows_unless_they_were_served_more_than_others(
    store: Store,
) -> None:
    queue = SqlQueue(store, QueueRules())

    async def rooms() -> set[str]:
        names = select(JOB_ROOMS.c.tenant).where(JOB_ROOMS.c.tenant != EVERYBODY)
        return set(await store.read(lambda connection: connection.execute(names).scalars().all()))

    for n in range(5):
        await queue.put(job(f"j{n}", f"named-once-{n}"))
        await queue.cancel(f"named-once-{n}", f"j{n}")
    await queue.put(job("a", "greedy", 100))
    lease = await queue.lease("w")
    assert lease is not None
    await queue.put(job("b", "greedy"))
    await queue.put(job("c", "modest"))
    await queue.end(lease, DONE)
    await queue.cancel("greedy", "b")
    assert len(await rooms()) == 7
    await queue.tidy()
    assert "modest" in await rooms()
    assert not any(name.startswith("named-once") for name in await rooms())
    await queue.cancel("modest", "c")
    await queue.tidy()
    assert await rooms() == set(), "where nobody waits nobody comes before another"


@pytest.mark.parametrize("name", ["%00", "job-%00", "%F0%9F%92%B6", "x" * 3000])
async def test_what_cannot_be_an_id_is_no_job(store: Store, name: str) -> None:
    async with rig(1, store=store) as made:
        for path, status in ((f"/v1/jobs/{name}", 404), (f"/v1/jobs?after={name}", 400)):
            async with made.http.get(made.url + path) as response:
                assert response.status == status, await response.text()
