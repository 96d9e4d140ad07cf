"""``python -m tests.bench.gateway_cost``: what the gateway itself costs, profile by profile, in one run.

CPU time of the gateway's process, from the kernel's account, divided by the tokens and by the calls that went
through it. The replicas are fakes in another process, so that nothing here depends on an engine. Two loads,
one of long streams and one of single tokens, give the cost a token and the cost a call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp
import psutil

from tests.bench.stand import on_fakes

COSTS: Final = ("token streamed", "token whole", "call of one token")
MOST: Final = 2.0
"""What the profile ``resilient`` may cost at most, as a multiple of ``naive``."""


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU and of wall-clock time for a number of calls with so many tokens in all."""

    calls: int
    tokens: int
    cpu_s: float
    wall_s: float


async def one_call(session: aiohttp.ClientSession, url: str, tokens: int, stream: bool) -> int:
    message = {"role": "user", "content": "measure " * 40}
    body = {
        "model": "brownout-tiny",
        "messages": [message],
        "max_tokens": tokens,
        "stream": stream,
        "temperature": 0,
    }
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
    ratios: dict[str, list[float]] = {}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        on_fakes(session) as stand,
    ):
        for number in range(rounds):
            costs: dict[str, tuple[float, float, float]] = {}
            for profile in ("naive", "resilient"):
                await stand.set_profile(session, profile, overrides={"ttft_objective_s": 60})
                many = partial(measure, session, stand.gateway, stand.gateway_pid)
                streams = await many(calls=48, tokens=200, at_once=24, stream=True)
                wholes = await many(calls=48, tokens=200, at_once=24, stream=False)
                shorts = await many(calls=600, tokens=1, at_once=8, stream=True)
                costs[profile] = (
                    1e6 * streams.cpu_s / streams.tokens,
                    1e6 * wholes.cpu_s / wholes.tokens,
                    1e6 * shorts.cpu_s / shorts.calls,
                )
                if number:  # the first round warms up
                    streamed, whole, call = costs[profile]
                    print(
                        f"{profile:10} {streamed:6.1f} us/token streamed {whole:6.1f} us/token whole "
                        f"{call:7.0f} us/call of one token "
                        f"({streams.tokens / streams.wall_s:.0f} tokens/s, {shorts.calls / shorts.wall_s:.0f} calls/s)"
                    )
            if number:
                for name, naive, resilient in zip(COSTS, costs["naive"], costs["resilient"], strict=True):
                    ratios.setdefault(name, []).append(resilient / naive)
    for name, each in ratios.items():
        ratio = statistics.median(each)
        rounds_said = " ".join(f"{one:.2f}" for one in each)
        said = "met" if ratio <= MOST else "missed"
        print(
            f"goal {said:<6}  CPU a {name}, resilient of naive: {ratio:.2f} (goal <= {MOST:g}; rounds {rounds_said})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one that warms up")
    asyncio.run(run(parser.parse_args().rounds + 1))


if __name__ == "__main__":
    main()
