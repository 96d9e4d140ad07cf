"""Fault 17: healthy but wedged: ``/health`` passes, no token moves. Busy but healthy: the health check times out
under a burst and a good replica is killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.call import Call
from policies.errors import PolicyError
from policies.events import Ejected
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.stalling import Freezer
from tests.fakes.virtual_time import now, run


@pytest.mark.parametrize("stopped", [False, True], ids=["engine hangs", "whole process stops"])
@pytest.mark.parametrize("streams", [0, 1, 6], ids=["idle", "one stream", "six streams"])
@pytest.mark.parametrize("calls_per_s", [1.0, 6.0])
def test_a_wedged_replica_is_out_within_two_seconds_of_its_first_silent_stream(
    stopped: bool, streams: int, calls_per_s: float
) -> None:
    async def main() -> None:
        bench = Freezer()
        wedged = bench.replicas[0]
        tasks = [bench.sending(wedged) for _ in range(streams)]
        await asyncio.sleep(0.2)
        bench.freeze(wedged, stopped=stopped)
        silent_since = now()

        async def arrivals() -> None:
            while True:
                tasks.append(bench.sending(wedged))
                await asyncio.sleep(1 / calls_per_s)

        arriving = asyncio.ensure_future(arrivals())
        await bench.ejected_within_s(wedged)
        arriving.cancel()
        assert now() - silent_since < 2.0
        assert bench.ejections() == ["r0"]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run(main())


class Engine:
    """Eight slots, 33 ms a token, prefill one after the other."""

    def __init__(self) -> None:
        self.slots, self.prefilling = asyncio.Semaphore(8), asyncio.Lock()

    async def answer(self, one: Call) -> str:
        assert one.attempt is not None
        one.attempt.progress.headers()
        async with self.slots:
            async with self.prefilling:
                await asyncio.sleep(0.03 + one.work.prompt_tokens * 0.0002)
            one.attempt.progress.tokens()
            for _ in range(one.work.output_tokens - 1):
                await asyncio.sleep(0.033)
                one.attempt.progress.tokens()
        return "answer"


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_of_three_times_the_capacity_ejects_nobody(seed: int) -> None:
    async def main() -> tuple[list[Ejected], int]:
        rng, sink = random.Random(seed), Remembering()
        fleet = Fleet(Replica(f"r{n}") for n in range(3))
        engines = {one: Engine() for one in fleet.replicas}
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, rng, sink)

        async def replica(one: Call) -> str:
            assert one.attempt is not None
            assert one.attempt.replica is not None
            return await engines[one.attempt.replica].answer(one)

        pipeline = build("resilient", replica, around)
        answered = 0

        async def client(number: int) -> None:
            nonlocal answered
            work = Work(rng.choice([50, 150, 400, 1500]), rng.randint(10, 60))
            try:
                await pipeline(call(str(number), within_s=20, work=work))
            except PolicyError:
                return
            answered += 1

        clients = []
        while now() < 15.0:
            clients.append(asyncio.ensure_future(client(len(clients))))
            await asyncio.sleep(rng.expovariate(60.0))
        await asyncio.gather(*clients)
        return sink.of(Ejected), answered

    ejected, answered = run(main())
    assert ejected == []
    assert answered > 150
