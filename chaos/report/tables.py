"""The rows and cards of the page: numbers of the verdict as texts, ready for the template."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from chaos import slo
from chaos.checks import Check
from chaos.early_warning import EarlyWarning
from chaos.measures import ArmMeasures, Measures, ObjectiveResult
from chaos.report import plots
from chaos.report.data import plain
from chaos.report.forest import forest
from chaos.report.story import first_signal, seconds
from chaos.text import estimate, interval, number
from chaos.verdict import Verdict

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


@dataclass(frozen=True, slots=True)
class Card:
    """One objective at the top of the page."""

    title: str
    objective: str
    picture: Markup
    said: tuple[str, ...]


def _gain(measures: Measures, results: Sequence[ObjectiveResult]) -> tuple[str, ...]:
    naive, resilient = (measures.of(measures.evidence.role(role)) for role in ("naive", "resilient"))
    objective = results[0].objective
    said = []
    if naive and resilient and naive.counted and resilient.counted:
        pair = (resilient, naive) if objective.higher_is_better else (naive, resilient)
        gain = measures.compare(objective.statistic, *pair, slo.difference, objective.scope)
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


def cards(measures: Measures) -> list[Card]:
    """Return one card an objective, in the experiment's order."""
    cards = []
    for objective in measures.evidence.experiment.objectives:
        results = [r for r in measures.objectives if r.objective == objective]
        if results:
            title = TITLES.get(objective.statistic, objective.statistic)
            cards.append(Card(title, objective.describe(), forest(results), _gain(measures, results)))
    return cards


def arm_row(arm: ArmMeasures) -> dict[str, Any]:
    """Return an arm's row in the table of arms."""
    values = [arm.statistics.get(name) for name in COLUMNS]
    return {
        "name": arm.evidence.name,
        "how": how(arm),
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


def how(arm: ArmMeasures) -> str:
    """Return in words how an arm was run."""
    spec = arm.evidence.arm
    without = f", without {', '.join(spec.without)}" if spec.without else ""
    return f"profile {spec.profile}{without}, {'with' if spec.fault else 'no'} fault"


def standing(measures: Measures, arm: str) -> str:
    """Return the worst standing of an arm's objectives."""
    standings = {r.standing for r in measures.results(arm)}
    for standing in ("broken", "unknown"):
        if standing in standings:
            return standing
    return "kept" if standings else "unknown"


def objective_rows(measures: Measures) -> list[dict[str, str]]:
    """Return the rows of the table of objectives."""
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


def warning_row(warning: EarlyWarning) -> dict[str, Any]:
    """Return what an arm's signals said, and when."""
    moves = []
    for m in warning.movements:
        when = seconds(m.after_s) if m.after_s is not None else "did not move" if m.sampled else "not sampled"
        by_itself = " (in the control arm too: no warning)" if m.in_control and m.after_s is not None else ""
        moves.append((m.signal.title, when + by_itself))
    felt = "nobody felt it"
    if warning.felt_after_s is not None:
        felt = f"{seconds(warning.felt_after_s)} ({warning.felt_by})"
    return {"arm": warning.arm, "said": first_signal(warning), "moves": moves, "felt": felt}


def amplification(arm: ArmMeasures) -> tuple[str, str, str, str, str]:
    """Return an arm's row in the table of retry amplification."""
    a = arm.amplification
    if a is None:
        return arm.evidence.name, "not measured", "not measured", "not measured", "not measured"
    ratio = f"{a.ratio:.3f}×" if a.ratio is not None else "not measured"
    return arm.evidence.name, f"{a.calls:,}", f"{a.attempts:,}", ratio, f"{a.repeated_prompt_tokens:,}"


def order(check: Check) -> int:
    """Sort key of the table of checks: what did not pass comes first."""
    return ("fail", "inconclusive", "pass").index(check.status)


def facts(verdict: Verdict) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return titled pairs: versions, machine, settings, capacity, load."""
    run = verdict.run
    if run is None:
        return []

    def pairs(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        for key, value in values.items():
            if isinstance(value, Mapping):
                told += pairs(value, f"{prefix}{key}.")
            elif value in ("", None):
                continue  # not set: the default, which the history does not say
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
