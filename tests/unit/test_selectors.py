"""Which calls are counted: the window in each arm, who awaited on the victim, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.evidence import Evidence, sort
from chaos.history import FaultRecord, GatewayEventRecord, Record
from chaos.selectors import SELECTORS, Selection, SelectionError, awaiting_requests, meaning, select
from tests.fakes.history import WORKER_LOSS, records

VICTIM = "replica-1.aaaa"


@pytest.fixture(scope="module")
def whole() -> list[Record]:
    return records()


def chosen(evidence: Evidence, arm: str) -> Selection:
    found = next(a for a in evidence.arms if a.name == arm)
    return select(evidence, found)


def test_the_window_begins_at_the_injection_and_in_the_control_arm_at_the_scheduled_time(
    whole: list[Record],
) -> None:
    evidence = sort(whole)
    assert evidence.scheduled_fault_s == pytest.approx(9.0)
    assert chosen(evidence, "control").start_s == evidence.scheduled_fault_s
    for name in ("naive", "resilient"):
        arm = next(a for a in evidence.arms if a.name == name)
        injected = arm.step("injected")
        assert injected is not None
        assert arm.start_at is not None
        assert chosen(evidence, name).start_s == pytest.approx(injected.at - arm.start_at)


def test_counted_are_exactly_those_that_awaited_and_those_of_the_next_ten_seconds(
    whole: list[Record],
) -> None:
    evidence = sort(whole)
    for arm in evidence.arms:
        selection = select(evidence, arm)
        window = {c.n for c in arm.calls if selection.start_s <= c.offset_s < selection.start_s + 10}
        assert {call.n for call in selection.calls} == window | selection.awaiting
        assert bool(selection.awaiting) == arm.arm.fault


def test_streams_that_were_cut_are_not_counted(whole: list[Record]) -> None:
    evidence = sort(whole)
    arm = next(a for a in evidence.arms if a.name == "resilient")
    cut = {c.n for c in arm.calls if c.outcome == "failed" and c.first_token_at is not None}
    assert cut
    assert not cut & {call.n for call in select(evidence, arm).calls}


def test_without_events_the_fault_says_who_awaited(whole: list[Record]) -> None:
    silent = [r for r in whole if not isinstance(r, GatewayEventRecord)]
    told = {arm: chosen(sort(silent), arm).awaiting for arm in ("naive", "resilient")}
    assert told == {arm: chosen(sort(whole), arm).awaiting for arm in ("naive", "resilient")}


def test_with_neither_events_nor_the_faults_word_nothing_is_counted(whole: list[Record]) -> None:
    silent: list[Record] = []
    for record in whole:
        if isinstance(record, GatewayEventRecord):
            continue
        silent.append(replace(record, detail={}) if isinstance(record, FaultRecord) else record)
    with pytest.raises(SelectionError, match="awaited"):
        chosen(sort(silent), "naive")


def test_a_fault_that_was_never_injected_has_no_window(whole: list[Record]) -> None:
    without = [r for r in whole if not (isinstance(r, FaultRecord) and r.step == "injected")]
    with pytest.raises(SelectionError, match="not injected"):
        chosen(sort(without), "naive")
    assert chosen(sort(without), "control").calls


def event(at: float, name: str, request: str, replica: str = VICTIM, attempt: int = 1) -> GatewayEventRecord:
    detail: dict[str, Any] = {"request_id": request, "attempt": attempt, "replica": replica}
    return GatewayEventRecord("naive", name, at, detail)


def awaited(events: list[GatewayEventRecord], injected: FaultRecord, *more: Record) -> frozenset[str]:
    run: list[Record] = [*more, injected, *events]
    arm = next(a for a in sort(run, WORKER_LOSS).arms if a.name == "naive")
    return awaiting_requests(arm, injected)


def test_awaiting_is_an_attempt_on_the_victim_that_is_open_and_has_no_token() -> None:
    injected = FaultRecord("naive", "kill_replica", VICTIM, "injected", 50.0, {"awaiting": ["stale"]})
    events = [
        event(49.0, "attempt_started", "waits"),
        event(50.2, "attempt_ended", "waits"),
        event(48.0, "attempt_started", "streams"),
        event(48.5, "attempt_first_token", "streams"),
        event(47.0, "attempt_started", "over"),
        event(49.5, "attempt_ended", "over"),
        event(49.0, "attempt_started", "elsewhere", "replica-2.bbbb"),
        event(50.5, "attempt_started", "later"),
        event(49.9, "attempt_started", "token comes after all"),
        event(50.1, "attempt_first_token", "token comes after all"),
    ]
    assert awaited(events, injected) == {"waits", "token comes after all"}


def test_a_connection_that_is_lost_while_the_kill_is_still_returning_counts_as_awaiting() -> None:
    took = FaultRecord("naive", "kill_replica", VICTIM, "injected", 50.0, {"took_s": 0.5})
    events = [event(49.0, "attempt_started", "waits"), event(49.6, "attempt_ended", "waits")]
    assert awaited(events, took) == {"waits"}
    instant = replace(took, detail={})
    assert awaited(events, instant) == frozenset()
    condition = FaultRecord("naive", "kill_replica", VICTIM, "condition", 49.4)
    assert awaited(events, instant, condition) == {"waits"}


def test_only_the_attempt_on_the_victim_decides_not_the_retry_elsewhere() -> None:
    injected = FaultRecord("naive", "kill_replica", VICTIM, "injected", 50.0)
    events = [
        event(49.0, "attempt_started", "moved on"),
        event(49.2, "attempt_ended", "moved on"),
        event(49.3, "attempt_started", "moved on", "replica-2.bbbb", attempt=2),
    ]
    assert awaited(events, injected) == frozenset()


def test_the_hold_window_ends_with_the_hold_or_with_an_earlier_revert(whole: list[Record]) -> None:
    held = replace(WORKER_LOSS, counted="hold_window")
    evidence = sort(whole, held)
    naive = chosen(evidence, "naive")
    assert naive.window_s == pytest.approx(held.phases.hold_s)
    assert not naive.awaiting
    assert all(naive.start_s <= c.offset_s < naive.end_s for c in naive.calls)
    early = [
        replace(r, at=r.at - 5) if isinstance(r, FaultRecord) and r.step == "reverted" else r for r in whole
    ]
    assert chosen(sort(early, held), "naive").window_s == pytest.approx(held.phases.hold_s - 5)
    assert chosen(sort(early, held), "control").window_s == pytest.approx(held.phases.hold_s)


def test_an_unknown_selector_offers_the_nearest(whole: list[Record]) -> None:
    with pytest.raises(SelectionError, match="worker_loss_window"):
        chosen(sort(whole, replace(WORKER_LOSS, counted="worker_los_window")), "control")


def test_every_selector_says_in_words_what_it_counts() -> None:
    for name in SELECTORS:
        assert meaning(name).startswith("Calls ")
    assert "unknown" in meaning("nonsense")
