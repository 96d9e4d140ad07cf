"""Fault 17: healthy but wedged: ``/health`` passes, no token moves. Busy but healthy: the health check times out
under a burst and a good replica is killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.errors import AttemptTimeout
from policies.events import Ejected
from policies.fleet import Fleet, Replica
from policies.observe import ObservedAttempt
from policies.outlier import OutlierDetection
from policies.progress import Progress
from policies.work import Work
from tests.fakes.policy_bench import CLOCK, Remembering
from tests.fakes.slotted import Service
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


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_of_three_times_the_capacity_ejects_nobody(seed: int) -> None:
    async def main() -> tuple[list[Ejected], int]:
        service = Service(seed)
        await service.load(15.0, calls_per_s=60.0)
        return service.sink.of(Ejected), len(service.answered)

    ejected, answered = run(main())
    assert ejected == []
    assert answered > 150


@pytest.mark.parametrize("without", [(), ("stall_watch",)])
def test_the_whole_pipeline_loses_no_call_to_a_wedged_engine(without: tuple[str, ...]) -> None:
    """Without the stall watch each stream on it is silent for as long as the slowest time-out."""

    async def main() -> tuple[float, int]:
        service = Service(1, without=without, sizes=((150, 18),))
        loading = asyncio.ensure_future(service.load(12.0, calls_per_s=9.0))
        await asyncio.sleep(3.0)
        wedged = service.fleet.replicas[0]
        service.engines[wedged].frozen = True
        out_after_s = await service.until_out(wedged)
        await loading
        return out_after_s, service.failed

    out_after_s, failed = run(main())
    if without:
        assert out_after_s > 2.5
    else:
        assert out_after_s < 2.0
        assert failed <= 8, "streams that had begun, where nothing can resume them"


@pytest.mark.parametrize("moving", [True, False])
def test_waiting_in_vain_at_a_replica_says_something_only_if_nobody_got_a_token_from_it(moving: bool) -> None:
    """A machine that is short of CPU sends headers late, and goes on giving tokens to those who stream."""

    async def main() -> list[Ejected]:
        sink, fleet = Remembering(), Fleet(Replica(f"r{n}") for n in range(3))
        outlier = OutlierDetection(fleet, clock=CLOCK, rng=random.Random(1), sink=sink)
        busy = fleet.replicas[0]

        def attempt(number: int) -> ObservedAttempt:
            progress = Progress(CLOCK)
            return ObservedAttempt(
                f"c{number}", 1, busy, Work(50, 20), progress, now(), free_slot=True, abort=lambda _: None
            )

        stream = attempt(0)
        outlier.started(stream)
        stream.progress.tokens()
        stream.tokens = 1
        for number in range(1, 7):
            waiting = attempt(number)
            outlier.started(waiting)
            await asyncio.sleep(1.0)
            if moving:
                stream.progress.tokens()
            waiting.outcome = "failed"
            outlier.ended(waiting, AttemptTimeout("no headers"))
        return sink.of(Ejected)

    assert bool(run(main())) is not moving
