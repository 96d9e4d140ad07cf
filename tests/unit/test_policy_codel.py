"""Controlled delay: a burst is no overload, a standing queue is."""

from __future__ import annotations

import pytest

from policies.codel import ControlledDelay


def test_a_delay_that_stays_above_the_target_for_an_interval_is_an_overload() -> None:
    codel = ControlledDelay(0.4, 1.0)
    assert not codel.observe(0.5, 10.0)
    assert not codel.observe(0.9, 10.8)
    assert codel.observe(0.6, 11.0)


def test_one_instant_at_the_target_ends_it_and_starts_the_count_anew() -> None:
    codel = ControlledDelay(0.4, 1.0)
    codel.observe(0.5, 10.0)
    codel.observe(0.4, 10.9)
    assert not codel.observe(1.0, 11.6)
    assert codel.observe(1.5, 12.5)
    assert not codel.observe(0.0, 12.6)
    assert not codel.overloaded


def test_a_delay_seen_late_counts_from_when_it_passed_the_target() -> None:
    """Nobody looked while the oldest waiter grew old: it has been above the target for 1.6 s."""
    assert ControlledDelay(0.4, 1.0).observe(2.0, 50.0)


def test_the_longest_burst_without_overload_is_target_and_interval_together() -> None:
    codel = ControlledDelay(0.4, 1.0)
    assert not any(codel.observe(age / 100, age / 100) for age in range(140))
    assert codel.observe(1.41, 1.41)


@pytest.mark.parametrize(("target_s", "interval_s"), [(0, 1), (1, 1), (-1, 2), (2, 1)])
def test_a_target_lies_below_its_interval(target_s: float, interval_s: float) -> None:
    with pytest.raises(ValueError, match="target_s"):
        ControlledDelay(target_s, interval_s)
