"""Fault 10, as far as policies go: a cancel race leaves a slot occupied for ever. After any storm of cancels permits,
reservations and what is in flight return to 0."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.call import Call
from policies.priority import Priority
from policies.work import Work
from tests.fakes.paced_fleet import PacedFleet
from tests.fakes.virtual_time import run


@pytest.mark.parametrize("seed", range(8))
def test_after_a_storm_of_cancels_nothing_is_held(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        fleet = PacedFleet(replicas=2, slots=2, believed_slots=2, seed=seed, without=["early_rejection"])
        tasks: list[asyncio.Task[str]] = []
        for number in range(300):
            own = Call(
                f"c{number}",
                work=Work(rng.randint(1, 400), rng.randint(1, 30), rng.choice((1, 1, 1, 3))),
                priority=rng.choice(list(Priority)),
                tenant=rng.choice("abc"),
            )
            tasks.append(asyncio.ensure_future(fleet.pipeline(own)))
            if rng.random() < 0.7:
                rng.choice(tasks).cancel()
            if rng.random() < 0.1:
                for task in tasks:
                    task.cancel()
            await asyncio.sleep(rng.choice((0, 0, 0.01, 0.2)))
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        fleet.assert_empty()
        own = await fleet.pipeline(Call("after", work=Work(10, 2)))
        assert own == "answer"
        fleet.assert_empty()

    run(main())


@pytest.mark.parametrize("steps", range(12))
def test_a_cancel_at_any_step_between_permit_and_answer_gives_everything_back(steps: int) -> None:
    """The loop is let run for so many steps, and then the call is cancelled, wherever it is by then."""

    async def main() -> None:
        fleet = PacedFleet(replicas=1, slots=1, believed_slots=1)
        holders = [asyncio.ensure_future(fleet.pipeline(Call(f"h{n}", work=Work(10, 3)))) for n in range(3)]
        victim = asyncio.ensure_future(fleet.pipeline(Call("victim", work=Work(10, 3))))
        await asyncio.sleep(0)
        for holder in holders:
            holder.cancel()
        for _ in range(steps):
            await asyncio.sleep(0)
        victim.cancel()
        await asyncio.gather(victim, *holders, return_exceptions=True)
        fleet.assert_empty()

    run(main())


def test_a_storm_of_leaving_waiters_lets_those_through_who_stay() -> None:
    async def main() -> None:
        fleet = PacedFleet(replicas=1, slots=2, believed_slots=2, without=["early_rejection"])
        leaving = [asyncio.ensure_future(fleet.pipeline(Call(f"l{n}", work=Work(10, 20)))) for n in range(50)]
        await asyncio.sleep(0.1)
        staying = [asyncio.ensure_future(fleet.pipeline(Call(f"s{n}", work=Work(10, 2)))) for n in range(4)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        assert await asyncio.gather(*staying) == ["answer"] * 4
        await asyncio.gather(*leaving, return_exceptions=True)
        fleet.assert_empty()

    run(main())
