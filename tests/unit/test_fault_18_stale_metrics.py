"""Fault 18: Stale metrics: a scrape outage looks like an idle (or a saturated) cluster.

Limits, admission and headroom go by what calls and attempts show. Nothing of it is scraped, so nothing of it can be
silent while there is traffic; and without traffic it neither grows nor stays as it was in the last overload.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import policies
from policies.limits import AimdLimit, Outcome, Sample
from policies.rates import RatePriors, Rates
from policies.work import Work
from tests.fakes.paced_fleet import PacedFleet
from tests.fakes.policy_bench import FixedClock
from tests.fakes.virtual_time import now, run


def test_a_cluster_of_which_nothing_is_heard_keeps_its_limits() -> None:
    """Silence is neither a sign of room, by which a limit would climb, nor one of overload."""

    async def main() -> list[float]:
        fleet = PacedFleet()
        await fleet.load(1.5, 15)
        seen = [fleet.admission.limit]
        loop_time = now()
        await fleet.load(0.01, 3600)
        assert now() > loop_time + 3600
        seen.append(fleet.admission.limit)
        return seen

    before, after = run(main())
    assert after == before


def test_offered_work_fades_when_no_call_comes_so_that_an_old_burst_is_no_overload() -> None:
    clock = FixedClock()
    rates = Rates(clock, RatePriors(window_s=5.0))
    for _ in range(200):
        rates.arrived(Work(1000, 100))
    assert rates.headroom(3) < 0
    clock.at += 60
    assert rates.headroom(3) == pytest.approx(1.0, abs=0.01)


def test_headroom_needs_arrivals_and_the_rotation_and_nothing_else() -> None:
    clock = FixedClock()
    rates = Rates(clock)
    for _ in range(50):
        rates.arrived(Work(500, 50))
    full = rates.headroom(3)
    assert rates.headroom(3) == full
    assert rates.headroom(2) < full, "a lost replica shows at once, before anybody is asked"


def test_one_that_was_lowered_is_not_lowered_again_by_what_it_is_told_late() -> None:
    limit = AimdLimit(8)
    limit.sample(Sample(10.0, 10, Outcome.DROPPED), 12.0)
    lowered = limit.value
    for late in range(100):
        limit.sample(Sample(11.0, 10, Outcome.DROPPED), 13.0 + late)
    assert limit.value == lowered


@pytest.mark.parametrize(
    "module", ["limits", "replica_limits", "admission", "shares", "fair_queue", "codel", "rates"]
)
def test_what_decides_on_capacity_cannot_ask_anybody(module: str) -> None:
    """These modules import nothing with which a metrics endpoint, a health check or a file could be read."""
    tree = ast.parse((Path(policies.__file__).parent / f"{module}.py").read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {
        "__future__",
        "asyncio",
        "collections",
        "collections.abc",
        "dataclasses",
        "enum",
        "functools",
        "math",
        "random",
        "types",
        "typing",
    }
    assert {name for name in imported if not name.startswith("policies.")} <= allowed
