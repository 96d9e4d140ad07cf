"""``python -m tests.bench.state_cost``: what the records of a request add to it, as ratios to the pipeline without.

Three gateways stand before the same paced stand-ins for replicas: one that keeps nothing, and two that keep their
records in SQLite. The arms take turns, in another order each round, with the same streaming calls: ``without`` any
record, with the ``audit``, and with ``audit+key``, where each call has an ``Idempotency-Key`` of its own besides.
Fewer callers than slots, so that a first token waits for the step under way and for nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench.closed_loop import cpu_clock
from tests.bench.ratios import Goal, Sample, table, verdict
from tests.bench.stand import NoStandError, gateway_before, on_fakes

BASE: Final = "without"
AUDIT: Final = "audit"
KEYED: Final = "audit+key"
STEP_S: Final = 0.04
TOKENS: Final = 16
GOALS: Final = (
    Goal("TTFT p50, audit+key of without", lambda one: one.ttft_p50_s, KEYED, BASE, 1.1),
    Goal("TTFT p50, audit of without", lambda one: one.ttft_p50_s, AUDIT, BASE, 1.1),
)
COULD_NOT: Final = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """A gateway, and whether its calls have keys."""

    name: str
    url: str
    pid: int
    keyed: bool = False


async def one_call(session: aiohttp.ClientSession, arm: Arm, number: int) -> tuple[float, bool]:
    """Make a call; return its time to first token in seconds, and whether it got its whole answer."""
    body = {
        "model": "brownout-tiny",
        "messages": [{"role": "user", "content": f"measure {number} " * 20}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {"idempotency-key": str(uuid.uuid4())} if arm.keyed else {}
    began, first, last = time.perf_counter(), 0.0, b""
    async with session.post(f"{arm.url}/v1/chat/completions", json=body, headers=headers) as response:
        async for data in response.content.iter_any():
            first = first or time.perf_counter()
            last = (last + data)[-32:]
    return first - began, response.status == 200 and last.endswith(b"data: [DONE]\n\n")


async def measure(session: aiohttp.ClientSession, arm: Arm, calls: int, callers: int) -> Sample:
    """Make so many calls, so many at a time, and account for the gateway's process."""
    numbers, ttft_s, unwhole = iter(range(calls)), list[float](), 0
    cpu = cpu_clock(arm.pid)

    async def caller(own: int) -> None:
        nonlocal unwhole
        await asyncio.sleep(STEP_S * own / callers)  # so that the callers do not all meet the same step
        for number in numbers:
            took_s, whole = await one_call(session, arm, number)
            ttft_s.append(took_s)
            unwhole += not whole

    before_s, began = cpu(), time.perf_counter()
    await asyncio.gather(*(caller(own) for own in range(callers)))
    return Sample(
        arm.name,
        time.perf_counter() - began,
        calls * TOKENS,
        calls,
        tuple(ttft_s),
        unwhole,
        cpu() - before_s,
    )


async def run(options: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    samples: list[Sample] = []
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brownout-state-")))
        stand = await stack.enter_async_context(on_fakes(session, STEP_S, slots=8))
        arms = [Arm(BASE, stand.gateway, stand.gateway_pid)]
        for name in (AUDIT, KEYED):
            gateway = await stack.enter_async_context(
                gateway_before(session, stand.links_port, f"sqlite:///{folder / name}.db")
            )
            arms.append(Arm(name, gateway.url, gateway.pid, keyed=name == KEYED))
        print(
            f"3 replicas of 8 slots ({stand.pace}), {options.callers} callers, {options.calls} calls of "
            f"{TOKENS} tokens an arm and round, {options.rounds} rounds",
            flush=True,
        )
        for number in range(options.rounds + 1):
            first = number % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                calls = options.calls if number else 2 * options.callers  # the first round warms up
                one = await measure(session, arm, calls, options.callers)
                if number:
                    samples.append(one)
                    print(f"round {number}  {one}", flush=True)
    print(*table(samples, BASE), sep="\n")
    verdicts = [verdict(samples, goal) for goal in GOALS]
    print(*(line for _, line in verdicts), sep="\n")
    return 1 if options.check and not all(met for met, _ in verdicts) else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds, after one that warms up")
    parser.add_argument("--calls", type=int, default=120, help="calls of an arm in a round")
    parser.add_argument("--callers", type=int, default=12, help="calls at a time (fewer than the 24 slots)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args()
    if options.rounds < 1 or not 1 <= options.callers <= options.calls:
        parser.error("at least 1 round is needed, and at least as many calls as callers")
    try:
        return asyncio.run(run(options))
    except NoStandError as error:
        print(f"bench: {error}", file=sys.stderr)
        return COULD_NOT


if __name__ == "__main__":
    sys.exit(main())
