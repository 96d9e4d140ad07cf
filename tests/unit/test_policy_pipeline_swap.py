"""A change of profile puts a fresh pipeline in: who waits in the old one still comes to an end."""

from __future__ import annotations

import asyncio
from collections import Counter

from policies.call import Call
from policies.errors import PolicyError
from policies.events import Admitted
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import RatePriors, Rates
from policies.work import Work, WorkLedger
from tests.fakes.batch_engine import BatchEngines
from tests.fakes.policy_bench import CLOCK, Remembering
from tests.fakes.virtual_time import run


def test_waiters_of_an_old_pipeline_are_served_or_refused_after_the_swap() -> None:
    async def main() -> Counter[str]:
        fleet, sink = Fleet([Replica("a")]), Remembering()
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK, RatePriors(slots=2)), CLOCK, sink=sink)
        engines = BatchEngines(2)
        became: Counter[str] = Counter()

        async def one(pipeline: object, name: str) -> None:
            try:
                became[await pipeline(Call(name, work=Work(10, 15)))] += 1  # type: ignore[operator]
            except PolicyError as error:
                became[type(error).__name__] += 1

        old = build("resilient", engines, around)
        tasks = [asyncio.create_task(one(old, f"old{n}")) for n in range(12)]
        await asyncio.sleep(0.1)
        assert old.admission is not None
        assert old.admission.queued() > 0
        new = build("resilient", engines, around)
        tasks += [asyncio.create_task(one(new, f"new{n}")) for n in range(4)]
        await asyncio.gather(*tasks)
        for pipeline in (old, new):
            assert pipeline.admission is not None
            assert pipeline.admission.in_use() == pipeline.admission.queued() == 0
        assert any(event.request_id.startswith("old") and event.waited_s > 0.1 for event in sink.of(Admitted))
        return became

    became = run(main())
    assert sum(became.values()) == 16
    assert became["answer"] >= 10


def test_when_the_fleet_goes_after_the_swap_old_waiters_hear_of_it() -> None:
    async def main() -> set[str]:
        fleet = Fleet([Replica("a")])
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK, RatePriors(slots=2)), CLOCK)

        async def hold(_: Call) -> str:
            await asyncio.sleep(3600)
            return "answer"

        old = build("resilient", hold, around, without=["early_rejection", "timeouts", "stall_watch"])
        held = [asyncio.create_task(old.handle(Call(f"h{n}"))) for n in range(2)]
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(old.handle(Call(f"w{n}"))) for n in range(3)]
        await asyncio.sleep(0.1)
        build("resilient", hold, around)
        fleet.update([])
        done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1.0)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return {type(one).__name__ for one in done}

    assert run(main()) == {"NoReplica"}
