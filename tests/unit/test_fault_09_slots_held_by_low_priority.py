"""Fault 9: Low-priority work holds every batch slot; strict priorities starve the batch class."""

from __future__ import annotations

import asyncio
import random

from policies.admission import Admission, AdmissionSettings
from policies.call import Call
from policies.errors import CallRefused
from policies.events import Admitted
from policies.fair_queue import QueueSettings
from policies.priority import Priority
from tests.fakes.paced_fleet import PacedFleet
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run

C, S = Priority.CRITICAL, Priority.SHEDDABLE


def test_low_priority_work_cannot_hold_every_slot_while_critical_calls_come() -> None:
    async def main() -> tuple[int, float]:
        sink = Remembering()
        admission = Admission(lambda: 20, clock=CLOCK, sink=sink)

        async def hold(own: Call) -> None:
            await asyncio.sleep(30 if own.priority is S else 0.1)

        await admission(call("seen", priority=C), hold)
        low = [asyncio.create_task(admission(call(f"s{n}", priority=S), hold)) for n in range(40)]
        await asyncio.sleep(0)
        held = admission.in_use(S)
        for number in range(20):
            await admission(call(f"c{number}", priority=C), hold)
            await asyncio.sleep(0.05)
        for task in low:
            task.cancel()
        await asyncio.gather(*low, return_exceptions=True)
        assert admission.in_use() == admission.queued() == 0
        waits = [event.waited_s for event in sink.of(Admitted) if event.priority == C.label]
        return held, max(waits)

    held, longest_wait_s = run(main())
    assert held == 18
    assert longest_wait_s == 0


def test_in_front_of_a_fleet_critical_calls_keep_their_objective_under_a_flood_of_others() -> None:
    """Three times what the fleet can do, a fifth of it critical."""

    def some(rng: random.Random) -> Priority:
        return C if rng.random() < 0.2 else S

    async def main() -> PacedFleet:
        fleet = PacedFleet()
        await fleet.load(0.5, 5, priority=some)
        await fleet.load(3.0, 30, priority=some)
        fleet.assert_empty()
        return fleet

    fleet = run(main())
    critical = [one for one in fleet.done if one.priority is C]
    served = [one for one in critical if one.became == "ok"]
    assert len(served) >= 0.99 * len(critical) > 100
    waits = sorted(event.waited_s for event in fleet.sink.of(Admitted) if event.priority == C.label)
    assert waits[int(0.95 * len(waits))] < 1.0
    assert waits[-1] < 2.5, "half of the objective"
    batch = [one for one in fleet.done if one.priority is S]
    assert sum(one.became == "ok" for one in batch) > 0.1 * len(batch), "what is left goes to the others"


def test_the_batch_class_is_served_even_when_critical_calls_alone_are_too_many() -> None:
    async def main() -> tuple[int, int]:
        rng = random.Random(1)
        admission = Admission(lambda: 4, clock=CLOCK, rng=rng)
        served = {C: 0, S: 0}

        async def handler(own: Call) -> None:
            served[own.priority] += 1
            await asyncio.sleep(0.2)

        async def one(priority: Priority) -> None:
            try:
                await admission(call(priority=priority), handler)
            except CallRefused:
                return

        tasks = []
        while now() < 60:
            tasks += [asyncio.create_task(one(p)) for p in (C, C, S)]
            await asyncio.sleep(
                rng.expovariate(1 / 0.05)
            )  # 40 critical calls a second, where 20 can be served
        await asyncio.gather(*tasks)
        return served[C], served[S]

    critical, batch = run(main())
    assert batch >= 0.02 * critical, "its least share"
    assert critical >= 0.9 * (critical + batch), "and no more"


def test_a_batch_call_that_can_wait_is_served_by_its_age_where_no_least_share_is_given() -> None:
    async def main() -> float:
        queue = QueueSettings(age_s=2.0, least_share=0.0)
        admission = Admission(lambda: 1, 60.0, settings=AdmissionSettings(queue=queue), clock=CLOCK)
        at = float("inf")

        async def handler(own: Call) -> None:
            nonlocal at
            if own.priority is S:
                at = now()
            await asyncio.sleep(0.1)

        tasks = []
        for number in range(120):
            tasks.append(asyncio.create_task(admission(call(priority=S if number == 0 else C), handler)))
            if number == 0:
                tasks.insert(0, asyncio.create_task(admission(call("first"), handler)))
                tasks.reverse()
            await asyncio.sleep(0.099)
        await asyncio.gather(*tasks, return_exceptions=True)
        return at

    assert run(main()) < 6.0
