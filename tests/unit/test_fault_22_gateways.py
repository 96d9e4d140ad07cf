"""Fault 22: "N gateway replicas each allow the whole budget or quota"."""

from __future__ import annotations

import pytest

from policies.retry_budget import BudgetSettings, RetryBudget
from policies.work import Work
from tests.fakes.policy_bench import FixedClock

SMALL = Work(10, 10)


def held_by(budgets: list[RetryBudget], work: Work = SMALL) -> int:
    """Return how many retries all of them grant together, each asked until it says no."""
    granted = 0
    for budget in budgets:
        while budget.hold(work) is not None:
            granted += 1
    return granted


@pytest.mark.parametrize("gateways", [1, 2, 4])
def test_gateways_together_grant_no_more_than_one_alone(gateways: int) -> None:
    clock = FixedClock()
    settings = BudgetSettings(gateways=gateways)
    budgets = [RetryBudget(clock, settings) for _ in range(gateways)]
    assert held_by(budgets) == 20, "half of the burst of 40, whoever asks"
    clock.at += 8.0
    assert held_by(budgets) == 8, "one a second, whoever asks"
    clock.at += 1e6
    assert held_by(budgets) == 40, "the burst, whoever asks"


def test_the_tokens_are_divided_too() -> None:
    clock = FixedClock()
    budgets = [RetryBudget(clock, BudgetSettings(burst=1000, gateways=4)) for _ in range(4)]
    assert held_by(budgets, Work(1000, 1)) == 20, "half of 40,000 tokens of prefill"
    budgets = [RetryBudget(clock, BudgetSettings(burst=1000, gateways=4)) for _ in range(4)]
    assert held_by(budgets, Work(1, 1000)) == 8, "half of 16,000 tokens of decode"


def test_what_first_attempts_earn_is_not_divided_because_each_sees_only_its_own() -> None:
    clock = FixedClock()
    settings = BudgetSettings(gateways=2, reserve_per_s=0)
    budgets = [RetryBudget(clock, settings) for _ in range(2)]
    held_by(budgets)
    for number in range(51):
        budgets[number % 2].deposit(Work(10, 10))
    assert held_by(budgets) == 10


def test_a_part_too_small_for_a_single_retry_is_refused_with_the_field_and_the_mend() -> None:
    with pytest.raises(ValueError, match="burst is 3: it must be at least 1 for each of 4 gateways"):
        BudgetSettings(burst=3, gateways=4)
    with pytest.raises(ValueError, match="gateways is 0"):
        BudgetSettings(gateways=0)
