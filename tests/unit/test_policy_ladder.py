"""The ladder's controller and its limits: fast down, slow up, and never past what a kind of call allows."""

from __future__ import annotations

import math

import pytest

from policies.errors import Overloaded
from policies.fleet import Replica
from policies.ladder import (
    BY_PRIORITY,
    CACHED,
    DEFERRED,
    LOWEST_LEVEL,
    NO_TOOLS,
    REFUSE,
    RUNGS,
    SHORT_OUTPUT,
    SMALL_MODEL,
    ClassRungs,
    Ladder,
    LadderSettings,
    depth,
)
from policies.pressure import FleetPressure, NoPressure
from policies.priority import Priority
from policies.rates import RatePriors, Rates
from policies.work import Backlog, Work, WorkLedger
from tests.fakes.policy_bench import FixedClock

NOTHING = Backlog()
SETTINGS = LadderSettings(down_at=1.0, up_at=0.75, down_every_s=0.25, dwell_s=3.0)


def ladder() -> tuple[Ladder, FixedClock]:
    clock = FixedClock()
    return Ladder(clock, SETTINGS), clock


def test_the_rungs_stand_in_the_order_in_which_they_hurt() -> None:
    assert RUNGS == (
        "full",
        "short_output",
        "short_context",
        "no_tools",
        "small_model",
        "cached",
        "deferred",
        "refuse",
    )
    assert Overloaded.reason not in RUNGS
    with pytest.raises(ValueError, match="must be one of full"):
        depth("half")


def test_it_reaches_the_bottom_within_a_second_and_goes_no_further() -> None:
    one, clock = ladder()
    levels = []
    for _ in range(8):
        levels.append(one.observe(2.0))
        clock.at += 0.25
    assert levels == [1, 2, 3, 4, 4, 4, 4, 4]
    assert one.level == LOWEST_LEVEL
    assert one.rung == SMALL_MODEL != REFUSE


def test_many_observations_at_once_are_one_step() -> None:
    one, _ = ladder()
    assert [one.observe(5.0) for _ in range(100)][-1] == 1


def test_it_goes_up_a_rung_only_after_a_calm_dwell() -> None:
    one, clock = ladder()
    one.observe(1.0)
    clock.at = 0.25
    one.observe(1.0)
    levels = {}
    for tenth in range(3, 80):
        clock.at = tenth / 10
        levels[clock.at] = one.observe(0.5)
    assert levels[3.2] == 2
    assert levels[3.3] == 1, "3 s after calm began"
    assert levels[6.2] == 1
    assert levels[6.4] == 0


def test_between_the_thresholds_it_stays_where_it_is() -> None:
    one, clock = ladder()
    one.observe(1.0)
    for second in range(100):
        clock.at = float(second)
        assert one.observe(0.9) == 1


def test_calm_that_is_broken_begins_anew() -> None:
    one, clock = ladder()
    one.observe(1.0)
    for clock.at, pressure in ((1.0, 0.1), (3.9, 0.8), (4.0, 0.1), (6.9, 0.1)):
        assert one.observe(pressure) == 1
    clock.at = 7.0
    assert one.observe(0.1) == 0


def test_a_long_silence_was_calm() -> None:
    """Nobody asks for an hour: the first who does is not answered as if the overload were still there."""
    one, clock = ladder()
    for _ in range(4):
        one.observe(2.0)
        clock.at += 0.25
    clock.at = 3600.0
    assert one.observe(0.0) == 0


def test_a_pressure_that_is_no_number_moves_nothing() -> None:
    one, clock = ladder()
    one.observe(1.0)
    clock.at = 100.0
    assert one.observe(math.nan) == 1
    assert one.observe(math.inf) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"up_at": 1.0}, "up_at=1.0"),
        ({"up_at": 0.0}, "up_at=0.0"),
        ({"down_every_s": 4.0}, "down_every_s=4.0"),
        ({"down_every_s": -1.0}, "down_every_s=-1.0"),
    ],
)
def test_settings_are_checked(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LadderSettings(**fields)


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="by_level=full"):
        ClassRungs(highest=SHORT_OUTPUT)
    with pytest.raises(ValueError, match="lowest=full"):
        ClassRungs(by_level=SHORT_OUTPUT, lowest="full")
    with pytest.raises(ValueError, match="rung is 'half'"):
        ClassRungs(lowest="half")
    with pytest.raises(ValueError, match="nobody is answered"):
        ClassRungs(lowest=REFUSE)
    with pytest.raises(ValueError, match="by_level is cached, the level goes no further than small_model"):
        ClassRungs(by_level=CACHED, lowest=DEFERRED)


def test_a_class_may_wait_or_take_a_cached_answer_only_by_name() -> None:
    assert all(one.lowest not in (CACHED, DEFERRED) for one in BY_PRIORITY.values())
    summary = ClassRungs.down_to(DEFERRED)
    assert (summary.by_level, summary.lowest) == (SMALL_MODEL, DEFERRED)
    assert summary.at(len(RUNGS)) == depth(SMALL_MODEL), "the level alone makes nobody wait"


def test_the_level_moves_low_value_work_and_leaves_critical_work_in_its_place() -> None:
    starts = {priority: [limits.at(level) for level in range(5)] for priority, limits in BY_PRIORITY.items()}
    assert starts[Priority.CRITICAL_PLUS] == starts[Priority.CRITICAL] == [0, 0, 0, 0, 0]
    assert starts[Priority.SHEDDABLE_PLUS] == [0, 1, 2, 3, 3]
    assert starts[Priority.SHEDDABLE] == [0, 1, 2, 3, 4]
    assert [depth(BY_PRIORITY[one].lowest) for one in Priority] == [1, 2, 3, 4]


def test_a_kind_may_have_a_ceiling() -> None:
    assert [ClassRungs(NO_TOOLS, NO_TOOLS, SMALL_MODEL).at(level) for level in range(5)] == [3] * 5


def pressure_on(
    count: int, *, late_share: float = 0.7, queued: Backlog = NOTHING
) -> tuple[FleetPressure, Rates, WorkLedger, list[Replica]]:
    rates = Rates(FixedClock(), RatePriors(slots=8, prefill_s_per_token=0.001, tpot_s=0.08, window_s=5.0))
    replicas, ledger = [Replica(f"r{n}") for n in range(count)], WorkLedger()
    pressure = FleetPressure(
        rotation=lambda: replicas,
        ledger=ledger,
        rates=rates,
        objective_s=2.0,
        late_share=late_share,
        queued=lambda: queued,
    )
    return pressure, rates, ledger, replicas


def test_load_is_offered_work_over_capacity() -> None:
    pressure, rates, _, replicas = pressure_on(2)
    for _ in range(100):  # each costs 0.1 replica-seconds, so that 100 in 5 s want two replicas
        rates.arrived(Work(0, 10))
    assert pressure.read() == (pytest.approx(1.0), "load")
    replicas.pop()
    assert pressure.read() == (pytest.approx(2.0), "load"), "a lost replica shows at once"
    replicas.pop()
    assert pressure.read()[0] == 0.0, "no rung can mend that nobody is there"


def test_what_the_ladder_takes_away_is_no_load_any_more() -> None:
    pressure, rates, _, _ = pressure_on(1)
    for _ in range(100):
        rates.arrived(Work(0, 10))
    for _ in range(200):
        pressure.served(Work(0, 10), Work(0, 5))
    assert pressure.read()[0] == pytest.approx(1.0, rel=0.01)
    for _ in range(200):
        pressure.served(Work(0, 10), Work())
    assert pressure.read()[0] == pytest.approx(0.0, abs=0.01)


def test_lateness_is_the_best_predicted_first_token() -> None:
    pressure, _, ledger, replicas = pressure_on(2, late_share=0.5)
    with ledger.reserve(replicas[0], Work(2970, 0)):
        assert pressure.read()[0] == 0.0, "the other is idle"
        with ledger.reserve(replicas[1], Work(1970, 0)):
            assert pressure.read() == (pytest.approx(2.0), "lateness")
    assert ledger.total.tokens == 0


def test_what_waits_in_front_of_the_replicas_is_late_too() -> None:
    waiting = Backlog(calls=4, prompt_tokens=4000, output_tokens=0)
    pressure, rates, _, _ = pressure_on(2, late_share=0.5, queued=waiting)
    expected_s = rates.drain_s(waiting, 2) + 0.03
    assert expected_s > 1
    assert pressure.read() == (pytest.approx(expected_s / 1.0), "lateness"), "though both replicas are idle"


def test_pressure_is_checked_and_may_be_none() -> None:
    assert NoPressure().read() == (0.0, "")
    NoPressure().served(Work(), Work())
    with pytest.raises(ValueError, match="late_share=2"):
        pressure_on(1, late_share=2)
