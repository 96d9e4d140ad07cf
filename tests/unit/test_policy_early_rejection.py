"""Early rejection counts what waits for a permit ahead of the call."""

from __future__ import annotations

import asyncio

import pytest

from policies.call import Call
from policies.early_rejection import EarlyRejection
from policies.errors import Overloaded
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.priority import Priority
from policies.profiles import build
from policies.rates import RatePriors, Rates
from policies.work import Backlog, Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, FixedClock, Remembering, Script, call
from tests.fakes.virtual_time import run

C, S = Priority.CRITICAL, Priority.SHEDDABLE
PACED = RatePriors(slots=8, prefill_base_s=0.05, prefill_s_per_token=0.0002, tpot_s=0.04)


class Bench:
    def __init__(self, queued: dict[Priority, Backlog], replicas: int = 2) -> None:
        self.fleet = Fleet(Replica(f"r{n}") for n in range(replicas))
        self.ledger = WorkLedger()
        self.rates = Rates(FixedClock(), PACED)
        self.policy = EarlyRejection(
            5.0,
            rotation=lambda: self.fleet.replicas,
            ledger=self.ledger,
            rates=self.rates,
            queued=lambda priority: queued.get(priority, Backlog()),
        )


def test_what_is_queued_ahead_is_worked_off_by_the_whole_fleet_first() -> None:
    bench = Bench({C: Backlog(10, 5000, 400)})
    for replica in bench.fleet.replicas:
        bench.ledger.reserve(replica, Work(0, 100))
    alone = bench.policy.predicted_ttft_s(1000, Priority.CRITICAL_PLUS)
    behind = bench.policy.predicted_ttft_s(1000, C)
    assert alone == pytest.approx(0.25)
    assert behind == pytest.approx(0.25 + (5000 * 0.0002 + 400 * 0.04 / 8) / 2)


def test_a_call_that_matters_more_is_not_behind_the_others() -> None:
    bench = Bench({S: Backlog(100, 0, 4000)})
    for replica in bench.fleet.replicas:
        bench.ledger.reserve(replica, Work(0, 100))

    async def main() -> None:
        script = Script()
        assert await bench.policy(call("c", priority=C), script) == "answer"
        with pytest.raises(Overloaded) as caught:
            await bench.policy(call("s", priority=S), script)
        assert caught.value.predicted_s == pytest.approx(4000 * 0.04 / 8 / 2, rel=0.05)
        assert 1 <= caught.value.retry_after_s <= 30

    run(main())


def test_an_idle_replica_refuses_nobody_while_nothing_queues_and_a_queue_counts_even_then() -> None:
    idle = Bench({})
    idle.ledger.reserve(idle.fleet.replicas[0], Work(0, 10**6))
    assert idle.policy.predicted_ttft_s(10**6, C) is None
    behind = Bench({C: Backlog(1, 0, 80)})
    assert behind.policy.predicted_ttft_s(1000, C) == pytest.approx(0.25 + 0.2)
    nobody = Bench({C: Backlog(1, 0, 80)}, replicas=0)
    assert nobody.policy.predicted_ttft_s(10, C) is None


def test_in_a_pipeline_it_sees_the_queue_of_admission() -> None:
    async def main() -> list[str]:
        fleet = Fleet([Replica("a")])
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK, PACED), CLOCK, sink=Remembering())

        async def hold(_: Call) -> str:
            await asyncio.sleep(3600)
            return "answer"

        pipeline = build("resilient", hold, around, without=["ladder", "timeouts", "stall_watch"])
        tasks = [asyncio.ensure_future(pipeline(Call(f"c{n}", work=Work(10, 100)))) for n in range(40)]
        await asyncio.sleep(0.5)
        assert pipeline.admission is not None
        assert pipeline.admission.queued() > 0
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [type(one).__name__ for one in results]

    became = run(main())
    assert became.count("Overloaded") > 0
    assert became.index("Overloaded") > 10, "who found slots free, or a short queue, was let through"
