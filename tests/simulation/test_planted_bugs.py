"""The simulation finds bugs: each that is planted is noticed within a few seeds, by the invariant meant for it."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTS
from tests.simulation.world import Report, run_world

MOST_SEEDS = 40


def first_find(name: str) -> Report:
    """Return the first run in which the plant is noticed by the invariant meant for it."""
    for seed in range(MOST_SEEDS):
        report = run_world(seed, name)
        if any(one.invariant in PLANTS[name].found_by for one in report.violations):
            return report
    raise AssertionError(f"{PLANTS[name].what}: not found with {MOST_SEEDS} seeds")


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_and_replays(name: str) -> None:
    found = first_find(name)
    again = run_world(found.seed, name)
    assert again.violations == found.violations
    assert again.digest == found.digest
    assert run_world(found.seed).violations == (), (
        "without the plant nothing is wrong, so it is the plant that was found"
    )


def test_an_unknown_plant_is_an_error() -> None:
    with pytest.raises(KeyError):
        run_world(0, "no_such_bug")
