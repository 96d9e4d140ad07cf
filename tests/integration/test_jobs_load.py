"""5,000 jobs, and a gateway that is killed twice while it works them off: all accounted for, each with one result."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from pathlib import Path

import aiohttp

from cluster import public
from tests.fakes.crash_stand import Process, crash_stand
from tests.fakes.replica import MODEL, Behaviour

JOBS = 5_000
CLIENTS = 32
KEYED = 60
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 1}
ASYNC = {"prefer": "respond-async"}


async def accept(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
    """Have one job accepted, however often its gateway dies meanwhile; return where it is."""
    async with asyncio.timeout(400):
        while True:
            try:
                async with http.post(f"{url}/v1/completions", json=BODY, headers=headers) as response:
                    if response.status == 202:
                        return response.headers["location"]
                    assert response.status in (409, 503), await response.text()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def enqueue(http: aiohttp.ClientSession, url: str, count: int) -> list[str]:
    numbers = iter(range(count))

    async def client(tenant: str) -> list[str]:
        headers = {**ASYNC, public.HEADER_TENANT: tenant}
        return [await accept(http, url, headers) for _ in numbers]

    found = await asyncio.gather(*(client(f"t{n % 4}") for n in range(CLIENTS)))
    return [where for one in found for where in one]


def states(file: Path) -> Counter[str]:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10) as connection:
        return Counter(dict(connection.execute("SELECT state, count(*) FROM jobs GROUP BY state")))


async def done(file: Path, count: int) -> None:
    """Wait until so many jobs are done."""
    async with asyncio.timeout(500):
        while (await asyncio.to_thread(states, file))["done"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def restart(gateway: Process) -> None:
    await gateway.kill()
    await gateway.start()


async def test_every_job_of_5000_has_one_result_though_the_gateway_is_killed_twice(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    began = time.monotonic()
    async with (
        crash_stand(f"sqlite:///{file}", tmp_path) as stand,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        for replica in stand.replicas:
            replica.behaviour = Behaviour()
        gateway = stand.gateway()
        gateway.environment |= {"BROWNOUT_JOB_LEASE_S": "2"}
        await gateway.start()
        url = gateway.url
        accepted = await enqueue(http, url, JOBS - KEYED)
        enqueued_s = time.monotonic() - began
        await done(file, states(file)["done"] + 100)
        keyed = [{**ASYNC, public.HEADER_IDEMPOTENCY_KEY: f"k{n}"} for n in range(KEYED)]
        late = asyncio.gather(*(accept(http, url, headers) for headers in keyed))
        await restart(gateway)
        accepted += await late
        await done(file, states(file)["done"] + 300)
        await restart(gateway)
        await done(file, JOBS)
        print(f"enqueued in {enqueued_s:.1f} s, all done after {time.monotonic() - began:.1f} s")
        asked = sum(len(replica.seen) for replica in stand.replicas)

    assert len(set(accepted)) == JOBS, "a key that was sent again is the same job"
    with sqlite3.connect(file) as connection:
        rows = connection.execute("SELECT id, state, attempts, status, headers, result FROM jobs").fetchall()
        rooms = connection.execute("SELECT jobs, tokens FROM job_rooms").fetchall()
    assert {f"/v1/jobs/{row[0]}" for row in rows} == set(accepted)
    again = 0
    for job_id, state, attempts, status, headers, result in rows:
        assert (state, status) == ("done", 200)
        assert json.loads(headers)[public.HEADER_REQUEST_ID] == f"{job_id}.{attempts}", "its last try's own"
        assert json.loads(result)["usage"]["completion_tokens"] == 1
        again += attempts - 1
    assert JOBS <= asked <= JOBS + again, "nothing was asked for that was not begun"
    assert again <= 2 * 16, "only what was under way when the gateway was killed is begun again"
    assert set(rooms) == {(0, 0)}, "the queue is empty, and knows it"
