"""``python -m tests.bench.gateway_cost``: what the gateway itself costs, profile by profile, in one run.

CPU time of the gateway's process, from the kernel's account, divided by the tokens and by the calls that went
through it. The replicas are fakes in another process, so that nothing here depends on an engine. Two loads,
one of long streams and one of single tokens, give the cost a token and the cost a call.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import psutil

from tests.ports import free_port


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU and of wall-clock time for a number of calls with so many tokens in all."""

    calls: int
    tokens: int
    cpu_s: float
    wall_s: float


@contextlib.asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        child.terminate()
        await child.wait()


async def one_call(session: aiohttp.ClientSession, url: str, tokens: int, stream: bool) -> int:
    message = {"role": "user", "content": "measure " * 40}
    body = {"model": "brownout-tiny", "messages": [message], "max_tokens": tokens, "stream": stream, "temperature": 0}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        data = await response.read()
    assert not stream or data.endswith(b"data: [DONE]\n\n")
    return tokens


async def measure(
    session: aiohttp.ClientSession, url: str, pid: int, *, calls: int, tokens: int, at_once: int, stream: bool
) -> Cost:
    """Make so many calls, so many at a time, and account for the process."""
    gate = asyncio.Semaphore(at_once)

    async def bounded() -> int:
        async with gate:
            return await one_call(session, url, tokens, stream)

    watched = psutil.Process(pid)
    before, began = watched.cpu_times(), time.perf_counter()
    done = sum(await asyncio.gather(*(bounded() for _ in range(calls))))
    after = watched.cpu_times()
    cpu_s = after.user - before.user + after.system - before.system
    return Cost(calls, done, cpu_s, time.perf_counter() - began)


async def run(rounds: int) -> None:
    links, gateway, admin = free_port(), free_port(), free_port()
    url, admin_url = f"http://127.0.0.1:{gateway}", f"http://127.0.0.1:{admin}"
    environment = {
        "BROWNOUT_PORT_LINKS": str(links),
        "BROWNOUT_PORT_GATEWAY": str(gateway),
        "BROWNOUT_PORT_GATEWAY_ADMIN": str(admin),
    }
    stand = ("tests.fakes.stand", "--links-port", str(links), "--token-interval-s", "0.01")
    async with (
        process(*stand),
        process("cluster.gateway", **environment) as child,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{admin_url}/readyz") as response:
                    if response.status == 200:
                        break
            await asyncio.sleep(0.05)
        for number in range(rounds):
            for profile in ("naive", "resilient"):
                change = {"profile": profile, "overrides": {"ttft_objective_s": 60}}
                async with session.put(f"{admin_url}/admin/profile", json=change) as response:
                    response.raise_for_status()
                streams = await measure(
                    session, url, child.pid, calls=48, tokens=200, at_once=24, stream=True
                )
                wholes = await measure(
                    session, url, child.pid, calls=48, tokens=200, at_once=24, stream=False
                )
                shorts = await measure(session, url, child.pid, calls=600, tokens=1, at_once=8, stream=True)
                if number:  # the first round warms up
                    print(
                        f"{profile:10} {1e6 * streams.cpu_s / streams.tokens:6.1f} us/token streamed "
                        f"{1e6 * wholes.cpu_s / wholes.tokens:6.1f} us/token whole "
                        f"{1e6 * shorts.cpu_s / shorts.calls:7.0f} us/call of one token "
                        f"({streams.tokens / streams.wall_s:.0f} tokens/s, {shorts.calls / shorts.wall_s:.0f} calls/s)"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one that warms up")
    asyncio.run(run(parser.parse_args().rounds + 1))


if __name__ == "__main__":
    main()
