"""Two replicas freeze while a third idles: it is somewhere to go, so the silence is not everywhere."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.call import Call
from policies.events import Ejected
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run


@pytest.mark.parametrize("removed", [False, True], ids=["both known", "one no longer known"])
def test_frozen_replicas_are_left_although_each_other_busy_one_is_silent_too(removed: bool) -> None:
    """Found by the simulation: the silent ones excused each other and held all permits, while a third idled.

    A replica that discovery had removed excused the others too, for as long as its attempts hung.
    """
    sink = Remembering()
    answered: list[str] = []

    async def main() -> None:
        fleet = Fleet(Replica(f"r{n}") for n in range(3))
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink)

        async def replica(one: Call) -> str:
            assert one.attempt is not None
            assert one.attempt.replica is not None
            one.attempt.progress.headers()
            if one.attempt.replica.name != "r2":
                await asyncio.sleep(60.0)
            one.attempt.progress.tokens()
            answered.append(one.attempt.replica.name)
            return "answer"

        pipeline = build("resilient", replica, around)
        asked = [asyncio.ensure_future(pipeline(call(f"c{n}"))) for n in range(2)]
        await asyncio.sleep(0.01)
        assert answered == [], "both were to be sent to a frozen one"
        if removed:
            fleet.update(one for one in fleet.replicas if one.name != "r1")
        assert await asyncio.gather(*asked) == ["answer", "answer"]
        assert now() < 3.0, "they were not left to the time-out on first tokens"

    run(main())
    assert answered == ["r2", "r2"]
    assert [one.replica for one in sink.of(Ejected)] == (["r0"] if removed else ["r0", "r1"])
