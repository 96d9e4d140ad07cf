"""The report folder: complete, well formed, self-contained, and safe with whatever a history says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from chaos import report
from chaos.history import CallRecord, CheckRecord, HistoryError, Record, RunRecord, SignalRecord
from chaos.report.data import plain
from chaos.report.markdown import escaped
from chaos.report.story import PACED
from chaos.verdict import Verdict, judge
from tests.fakes.history import records, write

RESAMPLES = 50
ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert('x')</script>\"&'|`\x00\x1b]]><img src=http://evil.example/x>"
LOADS = {"src", "href", "data", "poster", "srcset", "action", "formaction", "background", "xlink:href"}


def page_of(history: list[Record]) -> ET.Element:
    return parsed(report.html(judge(history, resamples=RESAMPLES)))


def parsed(html: str) -> ET.Element:
    """Parse the page as XML, which is stricter than a browser: every tag is closed, everything is escaped."""
    assert html.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(html.removeprefix("<!DOCTYPE html>\n"))


def text_of(page: ET.Element) -> str:
    return " ".join("".join(page.itertext()).split())


@pytest.fixture(scope="module")
def good() -> list[Record]:
    return records()


@pytest.fixture(scope="module")
def verdict(good: list[Record]) -> Verdict:
    return judge(good, resamples=RESAMPLES)


@pytest.fixture(scope="module")
def page(verdict: Verdict) -> ET.Element:
    return parsed(report.html(verdict))


def charts(page: ET.Element) -> Iterator[ET.Element]:
    return (figure for figure in page.iter("figure"))


# --- the folder --------------------------------------------------------------------------------------------


def test_write_makes_the_whole_folder_and_returns_the_verdict(tmp_path: Path, good: list[Record]) -> None:
    history = write(tmp_path / "elsewhere" / "h.jsonl", good)
    verdict = report.write(history, tmp_path / "out", resamples=RESAMPLES)
    assert verdict.status == "pass"
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {"history.jsonl", "verdict.json", "report.md", "junit.xml", "report.html"}
    data = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert (data["verdict"], data["exit_code"], data["schema"]) == ("pass", 0, "brownout.verdict/1")


def test_judging_again_replaces_the_report_and_keeps_the_history(tmp_path: Path, good: list[Record]) -> None:
    history = write(tmp_path / "history.jsonl", good)
    before = history.read_bytes()
    first = report.write(history, tmp_path, resamples=RESAMPLES)
    pages = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert report.write(history, tmp_path, resamples=RESAMPLES) == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == pages
    assert history.read_bytes() == before


def test_a_history_that_is_broken_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"type":"end","at":1}\nnonsense\n{"type":"end","at":2}\n')
    with pytest.raises(HistoryError, match="2"):
        report.write(path, tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 3, 40, 600])
def test_a_history_that_was_cut_off_still_gets_a_whole_report(
    tmp_path: Path, good: list[Record], keep: int
) -> None:
    history = write(tmp_path / "history.jsonl", good[:keep])
    verdict = report.write(history, tmp_path, resamples=RESAMPLES)
    assert verdict.status != "pass"
    parsed((tmp_path / "report.html").read_text())
    ET.fromstring((tmp_path / "junit.xml").read_bytes())


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_is_self_contained(verdict: Verdict, page: ET.Element) -> None:
    assert {"script", "link", "img", "iframe", "object", "embed", "base"}.isdisjoint(
        e.tag for e in page.iter()
    )
    assert [name for e in page.iter() for name in e.attrib if name in LOADS] == []
    html = report.html(verdict)
    assert re.findall(r"(?i)https?://|@import|file:", html) == []
    assert set(re.findall(r"url\(([^)]*)\)", html)) == {"#hatch"}
    policy = next(e for e in page.iter("meta") if e.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy.attrib["content"]


def test_the_page_says_first_what_was_asked_what_came_out_and_by_which_numbers(page: ET.Element) -> None:
    headings = ["".join(h.itertext()) for h in page.iter("h2")]
    assert headings[:4] == ["What was asked", "Verdict: pass", "The numbers that decide", "What happened"]
    text = text_of(page)
    for words in (
        "killed",
        "success_rate >= 1",
        "8.5 points",
        "replica-1.a1f7",
        "ejected it",
        PACED,
        "seed 7",
    ):
        assert words in text, words


def test_every_arm_has_every_chart_with_a_label_and_units(page: ET.Element) -> None:
    assert len(list(charts(page))) == 13 * 3
    for figure in charts(page):
        svg = figure.find("svg")
        assert svg is not None
        assert svg.get("role") == "img"
        assert svg.get("aria-label", "").startswith("Arm ")
        units = [t.text for t in svg.iter("text") if "unit" in (t.get("class") or "")]
        assert "s after the scheduled fault" in units
        assert units[0]


def test_a_row_has_the_same_scales_in_every_arm(page: ET.Element) -> None:
    for row in (e for e in page.iter("section") if e.get("class") == "row"):
        ticks = [
            [(t.get("x"), t.get("y"), t.text) for t in svg.iter("text") if "tick" in (t.get("class") or "")]
            for svg in row.iter("svg")
        ]
        assert ticks[0]
        assert all(other == ticks[0] for other in ticks)


def test_the_fault_is_shaded_where_there_was_one(page: ET.Element) -> None:
    for figure in charts(page):
        shaded = [r for r in figure.iter("rect") if r.get("class") == "fault"]
        assert len(shaded) == (0 if "Arm control" in figure.find("svg").get("aria-label", "") else 1)  # type: ignore[union-attr]


def test_ids_are_unique_and_headings_are_referenced(page: ET.Element) -> None:
    ids = [e.attrib["id"] for e in page.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    assert {e.attrib["aria-labelledby"] for e in page.iter() if "aria-labelledby" in e.attrib} <= set(ids)


def test_a_failed_run_names_what_failed_at_the_top() -> None:
    page = page_of(records(without=("retry",)))
    text = text_of(page)
    assert "1 check failed. policies_work: success_rate >= 1" in text
    assert "lacks: retry" in text


def test_an_inconclusive_run_says_why_at_the_top() -> None:
    assert "nothing either way: 1 check could not be decided. calibration: replicas share the CPU" in text_of(
        page_of(records(capacity_ratio=1.0))
    )


def test_everything_from_the_history_is_escaped(good: list[Record]) -> None:
    hostile: list[Record] = []
    for record in good:
        if isinstance(record, RunRecord):
            experiment = {**record.experiment, "name": HOSTILE, "question": HOSTILE}
            record = replace(
                record,
                experiment=experiment,
                versions={HOSTILE: HOSTILE},
                settings={HOSTILE: {HOSTILE: [HOSTILE]}},
                without=[HOSTILE],
                substrate=HOSTILE,
            )
        elif isinstance(record, CallRecord):
            record = replace(record, error=HOSTILE, error_type=record.error_type and HOSTILE, replica=HOSTILE)
        elif isinstance(record, CheckRecord):
            record = replace(record, detail={HOSTILE: HOSTILE}, ok=None)
        hostile.append(record)
    verdict = judge(hostile, resamples=RESAMPLES)
    html = report.html(verdict)
    assert "<script" not in html
    assert "<img" not in html
    page = parsed(html)
    assert {"script", "img"}.isdisjoint(e.tag for e in page.iter())
    assert "alert('x')" in text_of(page)
    ET.fromstring(report.junit(verdict))
    json.dumps(report.to_json(verdict), allow_nan=False)
    assert "<script" not in report.markdown(verdict)


def test_a_signal_that_was_never_sampled_is_drawn_as_missing_and_not_as_zero(good: list[Record]) -> None:
    blind = [replace(r, headroom=None) if isinstance(r, SignalRecord) else r for r in good]
    row = next(
        e
        for e in page_of(blind).iter("section")
        if e.get("class") == "row" and e.get("aria-label") == "Headroom"
    )
    assert text_of(row).count("no samples") == 3
    assert not [p for p in row.iter("path") if "main" in (p.get("class") or "")]


def test_a_big_history_makes_a_page_that_can_still_be_opened() -> None:
    html = report.html(judge(records(rate_per_s=60.0, capacity_ratio=0.667), resamples=10))
    assert len(html) < 3_000_000


# --- junit, markdown, json ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, None), ({"without": ("retry",)}, "failure"), ({"capacity_ratio": 1.0}, "error")],
)
def test_junit_has_a_case_a_check_and_one_for_the_verdict(options: dict[str, Any], kind: str | None) -> None:
    verdict = judge(records(**options), resamples=RESAMPLES)
    suite = ET.fromstring(report.junit(verdict)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == len(verdict.checks) + 1 == int(suite.attrib["tests"])
    assert cases[0].get("name") == "verdict"
    assert {child.tag for child in cases[0]} == ({kind} if kind else {"system-out"})
    assert int(suite.attrib["failures"]) == len(verdict.of_status("fail")) + (kind == "failure")
    assert int(suite.attrib["skipped"]) == len(verdict.of_status("inconclusive"))
    for case, check in zip(cases[1:], verdict.checks, strict=True):
        assert case.get("name") == check.name
        tag = {"pass": "system-out", "fail": "failure", "inconclusive": "skipped"}[check.status]
        assert case.find(tag) is not None


def test_a_crashed_checker_is_an_error_in_junit(good: list[Record]) -> None:
    verdict = judge(good, resamples=RESAMPLES)
    crashed = replace(verdict.checks[0], crashed=True, status="inconclusive")
    suite = ET.fromstring(report.junit(replace(verdict, checks=(crashed,)))).find("testsuite")
    assert suite is not None
    assert suite.attrib["errors"] == "1"


def test_markdown_has_the_verdict_and_a_row_a_check(verdict: Verdict) -> None:
    text = report.markdown(verdict)
    assert text.startswith("# worker_loss: pass\n")
    assert text.count("\n| pass |") == len(verdict.checks)


def test_markdown_cells_cannot_break_out_of_their_table() -> None:
    assert escaped("a|b\n<i>*c* _d_") == "a\\|b &lt;i>\\*c\\* \\_d\\_"
    assert escaped("[x](javascript:y)") == "[x\\](javascript:y)"


def test_markdown_keeps_names_and_intervals_readable() -> None:
    text = "ttft_p95 <= 3 x control: 0.12 s [0.1 to 0.2 s]"
    assert escaped(text) == text


def test_verdict_json_writes_never_as_a_word_and_unknown_as_null(verdict: Verdict) -> None:
    data = report.to_json(verdict)
    naive = next(arm for arm in data["arms"] if arm["name"] == "naive")
    assert naive["statistics"]["e2e_p95"]["value"] == "never"
    assert plain({"a": float("inf"), "b": float("nan"), "c": (1, {"d": None})}) == {
        "a": "never",
        "b": None,
        "c": [1, {"d": None}],
    }


def keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*(keys(inner) for inner in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(keys(v) for k, v in value.items() if k not in FREE))


FREE = {"detail", "versions", "machine", "settings", "statistics", "outcomes", "errors", "signals"}
"""Their keys are data."""


def test_docs_name_every_field_of_verdict_json(verdict: Verdict) -> None:
    documented = set(re.findall(r"`([a-z_0-9]+)`", (ROOT / "docs" / "report.md").read_text()))
    assert keys(report.to_json(verdict)) - documented == set()
