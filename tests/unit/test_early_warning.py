"""Which signal moved first, when users felt it, and the fault's timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.early_warning import EarlyWarning, Movement, SignalSpec, moved_at, warnings
from chaos.evidence import sort
from chaos.history import CallRecord, FaultRecord, GatewayEventRecord, Record, SignalRecord
from chaos.measures import measure
from chaos.report.story import first_signal
from chaos.timeline import timeline
from tests.fakes.history import records


@pytest.fixture(scope="module")
def whole() -> list[Record]:
    return records()


def samples(*values: float | None) -> list[tuple[float, float | None]]:
    """One sample a second from second 0 on."""
    return [(float(second), value) for second, value in enumerate(values)]


def test_a_signal_moves_when_it_leaves_its_steady_range_twice_in_a_row() -> None:
    assert moved_at(samples(1, 2, 1, 2, 9, 9), since=0, fault_at=3.5, step=0.1) == 4
    assert moved_at(samples(1, 2, 1, 2, 9, 1, 9, 1), since=0, fault_at=3.5, step=0.1) is None
    assert moved_at(samples(1, 2, 1, 2, 2.4, 2.4), since=0, fault_at=3.5, step=0.1) is None


def test_a_fall_is_a_movement_too() -> None:
    assert moved_at(samples(3, 3, 3, 3, 2, 2), since=0, fault_at=3.5, step=0.5) == 4


def test_a_flat_signal_must_move_by_its_smallest_step_of_interest() -> None:
    assert moved_at(samples(0, 0, 0, 0, 0.5, 0.5), since=0, fault_at=3.5, step=1) is None
    assert moved_at(samples(0, 0, 0, 0, 1, 1), since=0, fault_at=3.5, step=1) == 4


def test_what_was_not_sampled_does_not_move_and_is_not_zero() -> None:
    assert moved_at(samples(5, 5, 5, 5, None, None, None), since=0, fault_at=3.5, step=1) is None
    assert moved_at(samples(None, None, None, 5, 9, 9), since=0, fault_at=3.5, step=1) is None


def test_movement_before_the_fault_or_in_warm_up_does_not_count() -> None:
    assert moved_at(samples(50, 50, 5, 5, 5, 5), since=2, fault_at=3.5, step=1) is None


def test_the_loss_of_a_replica_moves_live_replicas_in_both_arms_but_not_in_control(
    whole: list[Record],
) -> None:
    found = {w.arm: w for w in warnings(measure(sort(whole), 20))}
    assert set(found) == {"naive", "resilient"}
    for warning in found.values():
        live = next(m for m in warning.movements if m.signal.name == "live_replicas")
        assert live.after_s is not None
        assert not live.in_control
        assert warning.felt_after_s is not None
        assert warning.earliest is not None
        assert warning.earliest.signal.name == "attempt_errors"


def test_a_signal_that_moves_in_the_control_arm_too_is_no_warning(whole: list[Record]) -> None:
    control = next(a for a in sort(whole).arms if a.name == "control")
    assert control.start_at is not None
    due = control.start_at + 9.0
    noisy = [
        replace(r, live_replicas=1.0)
        if isinstance(r, SignalRecord) and r.arm == "control" and r.at > due
        else r
        for r in whole
    ]
    for warning in warnings(measure(sort(noisy), 20)):
        live = next(m for m in warning.movements if m.signal.name == "live_replicas")
        assert live.in_control
        assert warning.earliest is not None
        assert warning.earliest.signal.name != "live_replicas"


def test_a_slow_first_token_is_felt_when_the_objective_is_over(whole: list[Record]) -> None:
    spared = [
        replace(r, outcome="ok") if isinstance(r, CallRecord) and r.arm == "resilient" else r for r in whole
    ]
    calm = {w.arm: w for w in warnings(measure(sort(spared), 20))}["resilient"]
    assert calm.limit_s is not None
    slow_call = next(
        r
        for r in spared
        if isinstance(r, CallRecord) and r.arm == "resilient" and r.stream and 12 < r.offset_s < 13
    )
    wait_s = calm.limit_s * 4
    slow = replace(
        slow_call,
        first_token_at=slow_call.scheduled_at + wait_s,
        ended_at=slow_call.scheduled_at + wait_s + 1,
    )
    evidence = sort([slow if r is slow_call else r for r in spared])
    found = {w.arm: w for w in warnings(measure(evidence, 20))}["resilient"]
    struck_at = next(a for a in evidence.arms if a.name == "resilient").struck_at
    assert struck_at is not None
    assert found.limit_s is not None
    assert found.felt_after_s == pytest.approx(slow.scheduled_at + found.limit_s - struck_at)
    assert f"call {slow.n}" in found.felt_by


SPEC = SignalSpec("queue_depth", "Queue depth", "calls", 1, "x")


@pytest.mark.parametrize(
    ("moved", "felt", "words"),
    [
        (1.0, 3.5, "2.50 s before users felt it"),
        (3.0, 1.0, "2.00 s after users felt it"),
        (1.0, 1.05, "together with the users"),
        (1.0, None, "nobody felt it"),
        (None, 1.0, "No signal left its steady range"),
    ],
)
def test_the_lead_is_told_in_words(moved: float | None, felt: float | None, words: str) -> None:
    movement = Movement(SPEC, moved, sampled=True, in_control=False)
    assert words in first_signal(EarlyWarning("naive", (movement,), felt, "", None))


def test_the_timeline_tells_strike_detection_and_replacement(whole: list[Record]) -> None:
    evidence = sort(whole)
    by_arm = {arm.name: timeline(evidence, arm) for arm in evidence.arms}
    assert by_arm["control"] is None
    resilient, naive = by_arm["resilient"], by_arm["naive"]
    assert resilient is not None
    assert naive is not None
    assert resilient.scheduled_offset_s <= resilient.struck_offset_s
    assert resilient.streaming is not None
    assert resilient.streaming >= 3
    assert (resilient.detected_by, naive.detected_by) == ("ejected", "upstream_removed")
    assert resilient.detected_s is not None
    assert naive.detected_s is not None
    assert resilient.detected_s < naive.detected_s
    assert resilient.replaced_by.startswith(resilient.target.split(".")[0])
    assert resilient.replaced_by != resilient.target
    assert resilient.first_token_s is not None
    assert resilient.replaced_s is not None
    assert resilient.first_token_s > resilient.replaced_s


def test_a_timeline_without_events_knows_less_and_says_so(whole: list[Record]) -> None:
    evidence = sort([r for r in whole if not isinstance(r, GatewayEventRecord)])
    naive = next(a for a in evidence.arms if a.name == "naive")
    found = timeline(evidence, naive)
    assert found is not None
    assert (found.detected_s, found.replaced_s, found.first_token_s) == (None, None, None)
    assert found.verified_s is not None


def test_regression_what_breaks_while_a_slow_kill_returns_is_told_apart_and_not_put_at_zero(
    whole: list[Record],
) -> None:
    # A container engine took 0.94 s to kill; connections broke within that time.
    slow = [
        replace(r, at=r.at + 0.9, detail={**r.detail, "took_s": 0.94})
        if isinstance(r, FaultRecord) and r.step == "injected"
        else r
        for r in whole
    ]
    for warning in warnings(measure(sort(slow), 20)):
        first = warning.earliest
        assert first is not None
        assert first.after_s is not None
        assert warning.felt_after_s is not None
        assert 0 < first.after_s < warning.felt_after_s < 0.94
    evidence = sort(slow)
    resilient = next(a for a in evidence.arms if a.name == "resilient")
    found = timeline(evidence, resilient)
    assert found is not None
    assert found.took_s == pytest.approx(0.94)
    assert found.detected_s is not None
    assert found.detected_s > 0
