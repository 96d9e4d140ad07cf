"""The retry budget: earned by first attempts, kept in attempts and in tokens, bounded when saved."""

from __future__ import annotations

from policies.retry_budget import BudgetSettings, RetryBudget
from policies.work import Work
from tests.fakes.policy_bench import FixedClock

SMALL = Work(10, 10)


def emptied(clock: FixedClock, **settings: float) -> RetryBudget:
    """Return a budget from which everything that was there at the start has been taken."""
    budget = RetryBudget(clock, BudgetSettings(**settings))
    while budget.hold(SMALL) is not None:
        pass
    return budget


def test_five_first_attempts_earn_one_retry() -> None:
    budget = emptied(FixedClock(), ratio=0.2, reserve_per_s=0)
    for _ in range(4):
        budget.deposit(SMALL)
    assert budget.hold(SMALL) is None
    budget.deposit(SMALL)
    budget.deposit(SMALL)
    assert budget.hold(SMALL) is not None
    assert budget.hold(SMALL) is None


def test_the_reserve_lets_a_quiet_service_retry() -> None:
    clock = FixedClock()
    budget = emptied(clock, reserve_per_s=1)
    assert budget.hold(SMALL) is None
    clock.at += 1.0
    assert budget.hold(SMALL) is not None


def test_no_more_is_saved_than_the_burst() -> None:
    clock = FixedClock()
    budget = RetryBudget(clock, BudgetSettings(burst=6, reserve_per_s=1))
    clock.at += 1000
    assert [budget.hold(SMALL) is not None for _ in range(8)] == [True] * 6 + [False] * 2


def test_long_prompts_exhaust_the_tokens_before_the_attempts() -> None:
    budget = RetryBudget(FixedClock(), BudgetSettings(burst=100, burst_tokens=20_000, reserve_tokens_per_s=0))
    large = Work(4000, 10)
    held = [budget.hold(large) is not None for _ in range(4)]
    assert held == [True, True, False, False], "half of 20,000 tokens cover two retries of 4,000"
    assert budget.hold(SMALL) is not None, "and a small one still"


def test_tokens_of_decode_are_an_account_of_their_own() -> None:
    of = BudgetSettings(burst=100, burst_output_tokens=2_000, reserve_output_tokens_per_s=0)
    budget = RetryBudget(FixedClock(), of)
    held = [budget.hold(Work(10, 400)) is not None for _ in range(4)]
    assert held == [True, True, False, False], "half of 2,000 tokens cover two retries of 400"
    assert budget.hold(Work(4000, 10)) is not None, "whatever it has of prefill"
    assert budget.tokens == (20_000 - 20 - 4000, 1000 - 800 - 10)


def test_a_hold_is_given_back_once_and_not_after_it_was_spent() -> None:
    budget = RetryBudget(FixedClock(), BudgetSettings(reserve_per_s=0))
    before = budget.balance
    hold = budget.hold(SMALL)
    assert hold is not None
    hold.refund()
    hold.refund()
    assert budget.balance == before
    spent = budget.hold(SMALL)
    assert spent is not None
    spent.spend()
    spent.refund()
    assert budget.balance == before - 1
