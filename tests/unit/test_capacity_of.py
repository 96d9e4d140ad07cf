"""Capacity is counted in tokens within a window, so that calls which straddle its ends add no noise."""

from __future__ import annotations

import pytest

from chaos.calibrate import CalibrationError, capacity_of
from chaos.events import awaiting_at, first_token_at
from chaos.history import CallRecord, GatewayEventRecord


def call(token_at: list[float], outcome: str = "ok", output_tokens: int | None = None) -> CallRecord:
    count = len(token_at) if output_tokens is None else output_tokens
    return CallRecord(
        arm="",
        n=0,
        request_id="r",
        offset_s=0,
        scheduled_at=token_at[0] - 1,
        sent_at=token_at[0] - 1,
        ended_at=token_at[-1],
        stream=True,
        prompt_sha="",
        prompt_tokens=10,
        max_tokens=count,
        outcome=outcome,  # type: ignore[arg-type]
        status=200,
        token_at=token_at,
        output_tokens=count,
    )


def test_tokens_within_the_window_over_the_mean_length() -> None:
    inside, straddling = call([10, 11, 12, 13]), call([18, 19, 20, 21])
    found = capacity_of([inside, straddling, call([30, 31, 32, 33])], 10, 20)
    assert found.tokens_per_s == pytest.approx(6 / 10)
    assert found.calls_per_s == pytest.approx(6 / 10 / 4)
    assert found.calls == 1
    assert found.duration_s == 10


def test_a_chunk_may_carry_several_tokens() -> None:
    assert capacity_of([call([10, 11], output_tokens=8)], 10, 20).tokens_per_s == pytest.approx(0.8)


def test_failed_calls_carry_nothing() -> None:
    with pytest.raises(CalibrationError, match="nothing was answered"):
        capacity_of([call([10, 11], outcome="failed")], 10, 20)
    with pytest.raises(CalibrationError):
        capacity_of([], 10, 20)


def event(at: float, name: str, request_id: str, replica: str = "replica-0.a") -> GatewayEventRecord:
    return GatewayEventRecord("naive", name, at, {"request_id": request_id, "attempt": 1, "replica": replica})


EVENTS = [
    event(1.0, "attempt_started", "had-token"),
    event(1.5, "attempt_first_token", "had-token"),
    event(2.0, "attempt_started", "awaiting"),
    event(2.0, "attempt_started", "elsewhere", "replica-1.b"),
    event(2.5, "attempt_started", "ended-before"),
    event(2.6, "attempt_ended", "ended-before"),
    event(2.9, "attempt_started", "lost-by-the-kill"),
    event(3.005, "attempt_ended", "lost-by-the-kill"),
    event(3.5, "attempt_started", "too-late"),
]


def test_calls_that_awaited_their_first_token_when_the_fault_struck() -> None:
    found = awaiting_at(reversed(EVENTS), "replica-0.a", struck_at=3.0, injected_at=3.01)
    assert found == ["awaiting", "lost-by-the-kill"]
    assert awaiting_at(EVENTS, "replica-2.c", 3.0, 3.01) == []


def test_a_first_token_between_condition_and_kill_is_not_awaiting() -> None:
    events = [event(1.0, "attempt_started", "quick"), event(3.005, "attempt_first_token", "quick")]
    assert awaiting_at(events, "replica-0.a", 3.0, 3.01) == []


def test_the_first_token_of_a_successor() -> None:
    assert first_token_at(EVENTS, {"replica-0.a"}) == 1.5
    assert first_token_at(EVENTS, {"replica-1.b"}) is None
