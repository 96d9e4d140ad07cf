"""Whatever a history lacks: it is judged without a crash, and it never passes."""

from __future__ import annotations

from functools import cache
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from chaos import report
from chaos.history import EndRecord, Record
from chaos.verdict import judge
from tests.fakes.history import records


@cache
def whole() -> tuple[Record, ...]:
    return tuple(records())


def kind(record: Record) -> str:
    return f"{record.type}/{record.arm}"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 5000))
def test_a_history_that_was_cut_off_anywhere_never_passes(keep: int) -> None:
    verdict = judge(whole()[: min(keep, len(whole()) - 1)], resamples=10)
    assert verdict.status != "pass"
    assert not [c for c in verdict.checks if c.crashed]
    ET.fromstring(report.html(verdict).removeprefix("<!DOCTYPE html>\n"))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_history_without_one_kind_of_record_is_judged_without_a_crash(data: st.DataObject) -> None:
    kinds = sorted({kind(record) for record in whole()})
    gone = data.draw(st.sampled_from(kinds))
    verdict = judge([r for r in whole() if kind(r) != gone], resamples=10)
    assert not [c for c in verdict.checks if c.crashed]
    # Signals and phases are shown; everything else is needed.
    if gone.split("/")[0] not in ("signal", "phase", "gateway_event"):
        assert verdict.status != "pass"
    ET.fromstring(report.junit(verdict))
    ET.fromstring(report.html(verdict).removeprefix("<!DOCTYPE html>\n"))


def test_the_last_line_is_what_completes_a_history() -> None:
    assert judge(whole(), resamples=10).status == "pass"
    assert judge([r for r in whole() if not isinstance(r, EndRecord)], resamples=10).status == "inconclusive"
