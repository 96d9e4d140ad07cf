"""Fault 1: "Retries at three layers multiply (3×3×5 = 45 calls): one owner of retries; total attempts ≤ budget"."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.call import Call, compose
from policies.errors import ReplicaLost
from policies.events import AttemptStarted
from policies.fleet import Fleet, Replica
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.retry import Retry
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import run


def failing(count: int = 100) -> Script:
    return Script(*(ReplicaLost("refused") for _ in range(count)))


def test_of_three_layers_that_would_retry_only_the_outermost_does() -> None:
    script = failing()
    layers = [Retry(max_attempts=attempts, rng=random.Random(1)) for attempts in (3, 3, 5)]
    with pytest.raises(ReplicaLost):
        run(compose(layers, script)(call()))  # type: ignore[arg-type]
    assert len(script.attempts) == 3
    assert [one.attempt_number for one in script.attempts] == [1, 2, 3]


def test_the_layers_within_leave_the_budget_alone() -> None:
    async def main() -> tuple[float, float]:
        budgets = [RetryBudget(CLOCK, BudgetSettings(reserve_per_s=0)) for _ in range(2)]
        layers = [Retry(budget=budget, rng=random.Random(1)) for budget in budgets]
        with pytest.raises(ReplicaLost):
            await compose(layers, failing())(call())
        return budgets[0].balance, budgets[1].balance

    outer, inner = run(main())
    assert outer == pytest.approx(20 + 0.2 - 2)
    assert inner == 20


@pytest.mark.parametrize("extra", [(), ("hedging",)], ids=["retries", "retries and hedges"])
def test_of_a_thousand_calls_that_all_fail_no_more_attempts_are_made_than_the_budget_has(
    extra: tuple[str, ...],
) -> None:
    sink = Remembering()

    async def main() -> None:
        fleet = Fleet(Replica(f"r{n}") for n in range(3))
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink)
        knobs = ProfileSettings(budget=BudgetSettings(ratio=0.1, reserve_per_s=0, burst=40))
        handler = failing(10_000)

        async def slowly(one: Call) -> object:
            await asyncio.sleep(0.3)
            return await handler(one)

        pipeline = build("naive", slowly, around, knobs, extra=["retry", "retry_budget", *extra])
        results = await asyncio.gather(*(pipeline(call(str(n))) for n in range(1000)), return_exceptions=True)
        assert all(isinstance(result, ReplicaLost) for result in results)

    run(main())
    attempts = sink.of(AttemptStarted)
    assert len(attempts) <= 1000 + 20 + 0.1 * 1000, "half the burst, and what the first attempts have earned"
    assert len(attempts) > 1020
    assert max(one.attempt for one in attempts) <= 3
