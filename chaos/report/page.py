"""``report.html``: one page that opens alone, offline, without a script, and says first what it has to say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from chaos import slo
from chaos.checks import Check
from chaos.early_warning import SIGNALS, EarlyWarning
from chaos.measures import ArmMeasures, Measures, ObjectiveResult
from chaos.report import plots
from chaos.report.data import plain
from chaos.report.forest import forest
from chaos.report.lane import lanes, phase_strip
from chaos.report.story import conclusion, first_signal, moment, notes, seconds, story
from chaos.selectors import meaning
from chaos.text import clean, count, estimate, interval, number
from chaos.verdict import Verdict

_HERE: Final = Path(__file__).parent
TITLES: Final[Mapping[str, str]] = {
    "success_rate": "Calls answered",
    "goodput": "Goodput",
    "ttft_p50": "Time to first token, p50",
    "ttft_p95": "Time to first token, p95",
    "ttft_p99": "Time to first token, p99",
    "e2e_p50": "Whole call, p50",
    "e2e_p95": "Whole call, p95",
}
COLUMNS: Final = ("success_rate", "ttft_p50", "ttft_p95", "e2e_p95", "itl_p99", "goodput")


MOST_CUT: Final = 100
"""Rows in the table of cut streams; verdict.json has all of them."""


@dataclass(frozen=True, slots=True)
class Card:
    """One objective at the top of the page."""

    title: str
    objective: str
    picture: Markup
    said: tuple[str, ...]


def _gain(measures: Measures, results: Sequence[ObjectiveResult]) -> tuple[str, ...]:
    naive, resilient = (measures.of(measures.evidence.role(role)) for role in ("naive", "resilient"))
    name = results[0].objective.statistic
    said = []
    if naive and resilient and naive.counted and resilient.counted and name in slo.STATISTICS:
        higher = slo.STATISTICS[name].higher_is_better
        pair = (resilient, naive) if higher else (naive, resilient)
        gain = measures.compare(name, *pair, slo.difference)
        sure = "significant" if gain.low is not None and gain.low > 0 else "not significant"
        better, worse = resilient.evidence.name, naive.evidence.name
        if gain.value is not None and math.isfinite(gain.value):
            said.append(f"{better} is better than {worse} by {estimate(gain)}: {sure}.")
        elif gain.value is not None:
            said.append(
                f"{worse} has no finite value, so the difference to {better} is not a number: {sure}."
            )
    for result in results:
        if result.ratio is not None and result.ratio.known:
            allowance_s = result.objective.allowance_s
            allowance = f" + {allowance_s:g} s" if allowance_s else ""
            said.append(
                f"{result.arm} / control: {estimate(result.ratio)}, limit {result.objective.limit:g}×{allowance}."
            )
    return tuple(said)


def _cards(measures: Measures) -> list[Card]:
    cards = []
    for objective in measures.evidence.experiment.objectives:
        results = [r for r in measures.objectives if r.objective == objective]
        if results:
            title = TITLES.get(objective.statistic, objective.statistic)
            cards.append(Card(title, objective.describe(), forest(results), _gain(measures, results)))
    return cards


def _rows(measures: Measures) -> list[plots.Row]:
    every = lanes(measures)
    limits = [
        r.limit
        for r in measures.objectives
        if r.objective.statistic.startswith("ttft") and r.limit is not None
    ]
    return [
        plots.outcomes(every),
        plots.ttft(every, min(limits, default=None)),
        plots.gaps(every),
        plots.attempts(every),
        *(plots.signal(every, spec) for spec in SIGNALS),
    ]


def _arm_row(arm: ArmMeasures) -> dict[str, Any]:
    values = [arm.statistics.get(name) for name in COLUMNS]
    return {
        "name": arm.evidence.name,
        "how": _how(arm),
        "counted": len(arm.counted),
        "awaiting": len(arm.selection.awaiting) if arm.selection else 0,
        "cells": [
            (number(v.value, v.unit), interval(v)) if v is not None else ("not measured", "") for v in values
        ],
        "gap": number(arm.longest_gap_s, "s"),
        "outcomes": [(o, arm.outcomes[o]) for o in plots.OUTCOMES if arm.outcomes.get(o)],
        "errors": ", ".join(f"{name} {n}" for name, n in arm.errors.items()),
        "cut": len(arm.cut_streams),
    }


def _how(arm: ArmMeasures) -> str:
    spec = arm.evidence.arm
    without = f", without {', '.join(spec.without)}" if spec.without else ""
    return f"profile {spec.profile}{without}, {'with' if spec.fault else 'no'} fault"


def _standing(measures: Measures, arm: str) -> str:
    standings = {r.standing for r in measures.results(arm)}
    for standing in ("broken", "unknown"):
        if standing in standings:
            return standing
    return "kept" if standings else "unknown"


def _objective_rows(measures: Measures) -> list[dict[str, str]]:
    return [
        {
            "objective": r.objective.describe(),
            "arm": r.arm,
            "value": number(r.value.value, r.value.unit),
            "interval": interval(r.value),
            "limit": number(r.limit, r.value.unit) if r.limit is not None else "not known",
            "ratio": estimate(r.ratio) if r.ratio else "",
            "standing": r.standing,
            "sure": r.reason or ("" if r.standing == "reference" else "yes" if r.certain else "no"),
        }
        for r in measures.objectives
    ]


def _warning_row(warning: EarlyWarning) -> dict[str, Any]:
    moves = []
    for m in warning.movements:
        when = seconds(m.after_s) if m.after_s is not None else "did not move" if m.sampled else "not sampled"
        by_itself = " (in the control arm too: no warning)" if m.in_control and m.after_s is not None else ""
        moves.append((m.signal.title, when + by_itself))
    felt = "nobody felt it"
    if warning.felt_after_s is not None:
        felt = f"{seconds(warning.felt_after_s)} ({warning.felt_by})"
    return {"arm": warning.arm, "said": first_signal(warning), "moves": moves, "felt": felt}


def _amplification(arm: ArmMeasures) -> tuple[str, str, str, str, str]:
    a = arm.amplification
    if a is None:
        return arm.evidence.name, "not measured", "not measured", "not measured", "not measured"
    ratio = f"{a.ratio:.3f}×" if a.ratio is not None else "not measured"
    return arm.evidence.name, f"{a.calls:,}", f"{a.attempts:,}", ratio, f"{a.repeated_prompt_tokens:,}"


def _order(check: Check) -> int:
    return ("fail", "inconclusive", "pass").index(check.status)


def _facts(verdict: Verdict) -> list[tuple[str, list[tuple[str, str]]]]:
    run = verdict.run
    if run is None:
        return []

    def pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        for key, value in values.items():
            if isinstance(value, Mapping):
                told += pairs(value, f"{prefix}{key}.")
            elif str(key).endswith("_bytes") and isinstance(value, int):
                told.append((prefix + str(key).removesuffix("_bytes"), f"{value / 2**30:.2f} GiB"))
            else:
                text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
                told.append((prefix + str(key), text))
        return told

    checks = verdict.evidence.checks if verdict.evidence else ()
    offered: Mapping[str, Any] = next((c.detail for c in checks if c.name == "offered_load"), {})
    calibrated = [
        (f"{c.replicas} replicas", f"{c.calls_per_s:.1f} calls/s, {c.tokens_per_s:.0f} tokens/s")
        for c in (verdict.evidence.calibrations if verdict.evidence else ())
    ]
    return [
        ("Versions", pairs(run.versions)),
        ("Machine", pairs(run.machine)),
        ("Settings", pairs(run.settings)),
        ("Calibrated capacity", calibrated),
        ("Offered load", pairs(offered)),
    ]


def _context(verdict: Verdict) -> dict[str, Any]:
    measures, run = verdict.measures, verdict.run
    experiment = measures.evidence.experiment if measures else None
    every = lanes(measures) if measures else ()
    end = measures.evidence.end if measures else None
    cut = [
        (arm.evidence.name, call, any(call.n == c.n for c in arm.counted))
        for arm in (measures.arms if measures else ())
        for call in arm.cut_streams
    ]
    under = []
    if run:
        under = [f"substrate {run.substrate}", f"seed {run.seed}", moment(run.started_at)]
        if run.without:
            under.append(f"without {', '.join(run.without)}")
        if end:
            under.append(f"{(end.at - run.started_at) / 60:.1f} min")
    return {
        "css": Markup((_HERE / "page.css").read_text()),
        "name": experiment.name if experiment else "unknown experiment",
        "question": experiment.question if experiment else "The history does not say.",
        "objectives_in_words": [o.describe() for o in experiment.objectives] if experiment else [],
        "counted_meaning": meaning(experiment.counted) if experiment else "",
        "minimum": experiment.minimum_counted if experiment else 0,
        "status": verdict.status,
        "under": under,
        "conclusion": conclusion(verdict),
        "deciding": verdict.deciding,
        "story": story(verdict),
        "cards": _cards(measures) if measures else [],
        "heads": [
            (lane.arm.name, _how(m), _standing(measures, lane.arm.name), phase_strip(lane))
            for lane in every
            if measures and (m := measures.of(lane.arm))
        ],
        "rows": _rows(measures) if every and measures else [],
        "outcomes": plots.OUTCOMES,
        "arms": [_arm_row(arm) for arm in measures.arms] if measures else [],
        "objectives": _objective_rows(measures) if measures else [],
        "warnings": [_warning_row(warning) for warning in verdict.early_warnings],
        "amplification": [_amplification(arm) for arm in measures.arms] if measures else [],
        "cut": cut[:MOST_CUT],
        "more_cut": max(0, len(cut) - MOST_CUT),
        "checks": sorted(verdict.checks, key=_order),
        "tally": ", ".join(
            count(len(verdict.of_status(s)), s, s)
            for s in ("fail", "inconclusive", "pass")
            if verdict.of_status(s)
        ),
        "facts": _facts(verdict),
        "notes": notes(verdict),
        "resamples": measures.resamples if measures else 0,
        "confidence": round(slo.CONFIDENCE * 100),
    }


def html(verdict: Verdict) -> str:
    """Return the page. Everything that comes from the history is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    return environment.get_template("page.jinja").render(_context(verdict))
