"""Fault 2: "The budget is checked before the backoff sleep: a thousand sleepers fire together"."""

from __future__ import annotations

import asyncio
import random

from policies.backoff import Constant, FullJitter
from policies.call import Call, compose
from policies.errors import ReplicaBusy, ReplicaLost
from policies.events import Hedged, RetryScheduled
from policies.hedging import Hedging, HedgingSettings
from policies.retry import Retry
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.work import Work
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import run

EARNS_NOTHING = BudgetSettings(ratio=0, reserve_per_s=0, burst=40)
"""Holds 20 retries, and no more ever."""


def test_a_thousand_that_fail_together_and_sleep_for_a_minute_are_not_a_thousand_afterwards() -> None:
    attempts = 0

    async def busy(_: Call) -> None:
        nonlocal attempts
        attempts += 1
        raise ReplicaBusy("503", retry_after_s=60.0)

    async def main() -> None:
        policy = Retry(budget=RetryBudget(CLOCK, EARNS_NOTHING), rng=random.Random(5))
        handler = compose([policy], busy)
        await asyncio.gather(*(handler(call(str(n))) for n in range(1000)), return_exceptions=True)

    run(main())
    assert attempts == 1020


def test_the_budget_is_held_from_before_the_sleep_on() -> None:
    async def lost(_: Call) -> None:
        raise ReplicaLost("refused")

    async def main() -> None:
        budget = RetryBudget(CLOCK, EARNS_NOTHING)
        handler = compose([Retry(max_attempts=2, budget=budget, backoff=Constant(30.0))], lost)
        tasks = [asyncio.ensure_future(handler(call(str(n)))) for n in range(5)]
        balances = []
        for wait_s in (1.0, 28.0, 2.0):
            await asyncio.sleep(wait_s)
            balances.append(budget.balance)
        assert balances == [15, 15, 15]
        assert all(task.done() for task in tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_retries_and_hedges_that_wait_at_the_same_time_share_it() -> None:
    sink = Remembering()

    async def half_fail_and_half_hang(one: Call) -> None:
        if int(one.request_id) % 2:
            raise ReplicaLost("refused")
        await asyncio.sleep(600.0)

    async def main() -> None:
        budget = RetryBudget(CLOCK, EARNS_NOTHING)
        hedging = Hedging(HedgingSettings(least_samples=1), budget=budget, sink=sink)
        hedging._ttft.observe("", 0.1)
        retry = Retry(
            budget=budget, backoff=FullJitter(base_s=0.2, cap_s=0.2), rng=random.Random(5), sink=sink
        )
        handler = compose([retry, hedging], half_fail_and_half_hang)
        await asyncio.gather(*(handler(call(str(n))) for n in range(1000)), return_exceptions=True)

    run(main())
    retries, hedges = len(sink.of(RetryScheduled)), len(sink.of(Hedged))
    assert retries + hedges == 20


def test_long_prompts_exhaust_it_sooner() -> None:
    sink = Remembering()

    async def lost(_: Call) -> None:
        raise ReplicaLost("refused")

    async def main() -> None:
        settings = BudgetSettings(ratio=0, reserve_per_s=0, burst=1000, reserve_tokens_per_s=0)
        handler = compose([Retry(budget=RetryBudget(CLOCK, settings), sink=sink)], lost)
        calls = (handler(call(str(n), work=Work(4000, 1))) for n in range(1000))
        await asyncio.gather(*calls, return_exceptions=True)

    run(main())
    assert len(sink.of(RetryScheduled)) == 5, "half of 40,000 tokens"
