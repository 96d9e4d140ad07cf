"""Fault 16: a queue hands out long jobs twice, never hands on those of a killed worker, or keeps what is done.

The workers are processes of their own on one store, and are killed while they hold jobs.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, select

from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import JOBS
from policies.work_queue import DONE, NewJob, QueueRules, Result

JOBS_PUT = 60
LEASE_S = 2.0
WORKERS = 3

WORKER = """
import asyncio, os, sys
from pathlib import Path
from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.store.opening import open_store
from policies.work_queue import DONE, LeaseLost, QueueRules, Result

async def main(setting, name, hang):
    store = await open_store(setting, Path("."))
    queue = SqlQueue(store, QueueRules(lease_s=float(sys.argv[4]), tenant_share=1.0))
    while True:
        lease = await queue.lease(name)
        if lease is None:
            await asyncio.sleep(0.05)
            continue
        print(lease.job.id, lease.fence, flush=True)
        if hang == "yes":
            await asyncio.sleep(3600)
        try:
            await queue.end(lease, DONE, result=Result(name.encode()))
        except LeaseLost:
            pass

asyncio.run(main(*sys.argv[1:4]))
"""


async def worker(setting: str, name: str, hang: str) -> asyncio.subprocess.Process:
    arguments = ("-c", WORKER, setting, name, hang, str(LEASE_S))
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)


def done(connection: Connection) -> int:
    return connection.execute(select(func.count()).where(JOBS.c.state == DONE)).scalar_one()


async def test_what_killed_workers_held_is_handed_on_and_nothing_is_done_twice(
    store: Store, store_setting: str, tmp_path: Path
) -> None:
    queue = SqlQueue(store, QueueRules(lease_s=LEASE_S, tenant_share=1.0))
    for n in range(JOBS_PUT):
        await queue.put(NewJob(f"j{n}", f"t{n % 3}", 1, 10, b"ask"))
    killed = [await worker(store_setting, f"killed-{n}", "yes") for n in range(2)]
    held = []
    for process in killed:
        assert process.stdout is not None
        held.append((await process.stdout.readline()).split()[0].decode())
        process.send_signal(signal.SIGKILL)
        await process.communicate()
    assert len(set(held)) == 2, "no two have the same job"
    alive = [await worker(store_setting, f"alive-{n}", "no") for n in range(WORKERS)]
    try:
        async with asyncio.timeout(120):
            while await store.read(done) < JOBS_PUT:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        for process in alive:
            process.kill()
        told = [(await process.communicate())[0].decode().split("\n") for process in alive]
    begun = [line.split()[0] for lines in told for line in lines if line]
    assert sorted(begun) == sorted(f"j{n}" for n in range(JOBS_PUT)), (
        "each was handed out once more, and only once"
    )
    for job_id in held:
        tenant = f"t{int(job_id[1:]) % 3}"
        job = await queue.get(tenant, job_id)
        assert job is not None
        assert job.attempts == 2
        result = await queue.result(tenant, job_id)
        assert result is not None
        assert result.body.startswith(b"alive")


async def test_a_long_job_is_not_handed_out_again_while_its_worker_lives(store: Store) -> None:
    queue = SqlQueue(store, QueueRules(lease_s=5.0))
    await queue.put(NewJob("long", "t", 1, 10, b"ask"))
    lease = await queue.lease("w")
    assert lease is not None
    loop = asyncio.get_running_loop()
    until = loop.time() + 6.0  # longer than a lease
    while loop.time() < until:
        await queue.extend(lease)
        assert await queue.lease("another") is None
        await asyncio.sleep(0.2)
    await queue.end(lease, DONE, result=Result(b"once"))


async def test_what_is_done_is_removed(store: Store) -> None:
    queue = SqlQueue(store, QueueRules(keep_s=0.01))
    await queue.put(NewJob("a", "t", 1, 10, b"ask"))
    lease = await queue.lease("w")
    assert lease is not None
    await queue.end(lease, DONE, result=Result(b"said"))

    def rows(connection: Connection) -> int:
        return connection.execute(select(func.count()).select_from(JOBS)).scalar_one()

    async with asyncio.timeout(20):
        while await store.read(rows):
            await queue.tidy()


@pytest.mark.parametrize("gateways", [3])
async def test_several_gateways_do_not_get_past_the_bound_together(store: Store, gateways: int) -> None:
    rules = QueueRules(most_jobs=10, tenant_share=1.0)
    queues = [SqlQueue(store, rules) for _ in range(gateways)]
    tries = [queues[n % gateways].put(NewJob(f"j{n}", f"t{n}", 1, 1, b"")) for n in range(40)]
    ends = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(one, BaseException) for one in ends) == 10
