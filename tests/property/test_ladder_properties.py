"""The ladder under any pressure: never faster up than its dwell, never outside the limits, never twice at a rung."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.call import Call
from policies.degradation import Degradation
from policies.errors import CallRefused, NoReplica, QueueFull
from policies.ladder import LOWEST_LEVEL, RUNGS, ClassRungs, Ladder, LadderSettings, depth
from tests.fakes.policy_bench import FixedClock, call
from tests.fakes.virtual_time import run

SETTINGS = LadderSettings(down_at=1.0, up_at=0.7, down_every_s=0.25, dwell_s=2.0)
steps = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), min_size=1, max_size=60)
ANSWERING = RUNGS[:-1]


@st.composite
def limits(draw: st.DrawFn) -> ClassRungs:
    three = sorted(draw(st.tuples(*[st.integers(0, LOWEST_LEVEL)] * 3)))
    return ClassRungs(*(RUNGS[one] for one in three))


@given(steps)
def test_the_level_moves_one_down_at_a_time_and_up_no_faster_than_the_dwell(
    given_steps: list[tuple[float, float]],
) -> None:
    clock = FixedClock()
    ladder = Ladder(clock, SETTINGS)
    moved_at: float | None = None
    for pause_s, pressure in given_steps:
        clock.at += pause_s
        before = ladder.level
        level = ladder.observe(pressure)
        assert 0 <= level <= LOWEST_LEVEL
        if level > before:
            assert level == before + 1
            assert pressure >= SETTINGS.down_at
            assert moved_at is None or clock.at - moved_at >= SETTINGS.down_every_s - 1e-9
            moved_at = clock.at
        elif level < before:
            assert pressure <= SETTINGS.up_at
            assert moved_at is not None
            least_s = (before - level) * SETTINGS.dwell_s
            assert clock.at - moved_at >= least_s - 1e-9
            moved_at += least_s  # the earliest at which it may have taken the last of these steps


@given(steps, st.floats(0, 2))
def test_in_calm_it_comes_back_to_full_service_whatever_went_before(
    given_steps: list[tuple[float, float]], more: float
) -> None:
    clock = FixedClock()
    one, other = Ladder(clock, SETTINGS), Ladder(clock, SETTINGS)
    for pause_s, pressure in given_steps:
        clock.at += pause_s
        one.observe(pressure)
        other.observe(pressure + more)
    clock.at += 100.0  # both end in calm: neither is stuck
    assert one.observe(0.0) == other.observe(0.0) == 0


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.floats(0, 2))
def test_pressed_harder_in_step_it_is_never_higher(pressures: list[float], more: float) -> None:
    """With observations as far apart as a step down may follow another, the order is kept throughout."""
    clock = FixedClock()
    one, other = Ladder(clock, SETTINGS), Ladder(clock, SETTINGS)
    for pressure in pressures:
        clock.at += SETTINGS.down_every_s
        assert other.observe(pressure + more) >= one.observe(pressure)


@given(limits(), st.integers(0, LOWEST_LEVEL))
def test_a_call_starts_within_its_limits_and_deeper_at_a_deeper_level(one: ClassRungs, level: int) -> None:
    start = one.at(level)
    assert depth(one.highest) <= start <= depth(one.by_level) <= depth(one.lowest)
    assert one.at(min(LOWEST_LEVEL, level + 1)) >= start


class _Marked:
    def __init__(self, nothing: frozenset[str]) -> None:
        self._nothing = nothing

    def at(self, one: Call, rung: str) -> Call | None:
        return None if rung in self._nothing else replace(one, payload=(*one.payload, rung))


@given(
    limits(),
    st.lists(st.floats(0, 3), max_size=8),
    st.frozensets(st.sampled_from(RUNGS)),
    st.frozensets(st.sampled_from(RUNGS)),
    st.lists(st.sampled_from([QueueFull, NoReplica, None]), max_size=6),
)
def test_a_call_is_tried_at_most_once_a_rung_within_its_limits_and_rights(
    within: ClassRungs,
    pressures: list[float],
    denied: frozenset[str],
    nothing: frozenset[str],
    answers: list[type[CallRefused] | None],
) -> None:
    tried: list[tuple[str, ...]] = []
    script = list(answers)

    async def handler(one: Call) -> None:
        tried.append(one.payload)
        kind = script.pop(0) if script else None
        if kind is not None:
            raise kind("no", retry_after_s=1.0)

    async def quick(one: Call) -> None:
        return None

    class Pressed:
        pressure = 0.0

        def read(self) -> tuple[float, str]:
            return self.pressure, "test"

        def served(self, *_: Any) -> None:
            pass

    async def main() -> None:
        clock, pressed = FixedClock(), Pressed()
        ladder = Degradation(
            SETTINGS,
            pressure=pressed,
            classes={"kind": within},
            entitled=lambda one, rung: rung not in denied,
            clock=clock,
        )
        for pressed.pressure in pressures:
            clock.at += 0.3
            await ladder(call(), quick)
        level = ladder.level
        pressed.pressure = 0.9
        one = call(service_class="kind", payload=(), degradable=_Marked(nothing))
        try:
            await ladder(one, handler)
            expected = tried[-1][-1] if tried[-1] else "full"
        except CallRefused:
            expected = "refuse"
        assert one.delivery.rung == expected
        assert len(set(tried)) == len(tried), "each try takes something more away"
        assert len(tried) <= len(ANSWERING)
        for payload in tried:
            assert not denied.intersection(payload)
            assert all(depth(rung) <= depth(within.lowest) for rung in payload)
            assert list(payload) == sorted(payload, key=depth)
        offered = [r for r in RUNGS[1 : within.at(level) + 1] if r not in denied | nothing]
        assert list(tried[0]) == offered, "it starts where the level says, not below and not above"

    run(main())
