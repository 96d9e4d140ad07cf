"""``verdict.json``: the verdict as plain data with a stable shape. docs/report.md says what each field means.

Numbers that mean *never* (a latency whose percentile falls on a call that got no token) are the text ``"never"``, what
was not measured is null; nothing that is missing is ever written as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from chaos.early_warning import EarlyWarning
from chaos.measures import ArmMeasures, ObjectiveResult
from chaos.selectors import meaning
from chaos.slo import Estimate
from chaos.timeline import Timeline
from chaos.verdict import SCHEMA, Verdict


def number(value: float | None) -> float | str | None:
    """Return what JSON can hold: infinity becomes ``"never"`` or ``"-never"``."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "never" if value > 0 else "-never"
    return round(value, 6)


def plain(value: Any) -> Any:
    """Return any detail as JSON data; infinities as :func:`number` writes them, unknown kinds as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return str(value)


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "value": number(estimate.value),
        "low": number(estimate.low),
        "high": number(estimate.high),
        "n": estimate.n,
        "unit": estimate.unit,
        "method": estimate.method,
    }


def _objective(result: ObjectiveResult) -> dict[str, Any]:
    return {
        "arm": result.arm,
        "objective": result.objective.describe(),
        "statistic": result.objective.statistic,
        "relative_to_control": result.objective.relative_to_control,
        "limit": number(result.limit),
        "value": _estimate(result.value),
        "ratio_to_control": _estimate(result.ratio),
        "standing": result.standing,
        "certain": result.certain,
        "reason": result.reason,
    }


def _arm(measures: ArmMeasures, timelines: tuple[Timeline, ...]) -> dict[str, Any]:
    evidence, selection, amplified = measures.evidence, measures.selection, measures.amplification
    timeline = next((t for t in timelines if t.arm == evidence.name), None)
    return {
        "name": evidence.name,
        "role": evidence.role,
        "profile": evidence.arm.profile,
        "fault": evidence.arm.fault,
        "without": list(evidence.arm.without),
        "started_at": number(evidence.start_at),
        "counted": {
            "calls": len(measures.counted),
            "awaiting": len(selection.awaiting) if selection else None,
            "window_start_s": number(selection.start_s) if selection else None,
            "window_end_s": number(selection.end_s) if selection else None,
            "outcomes": dict(measures.outcomes),
            "errors": dict(measures.errors),
            "problem": measures.problem,
        },
        "statistics": {name: _estimate(estimate) for name, estimate in measures.statistics.items()},
        "longest_gap_s": number(measures.longest_gap_s),
        "all_calls": {"calls": len(evidence.calls), "outcomes": dict(measures.all_outcomes)},
        "retry_amplification": None
        if amplified is None
        else {
            "calls": amplified.calls,
            "attempts": amplified.attempts,
            "ratio": number(amplified.ratio),
            "repeated_prompt_tokens": amplified.repeated_prompt_tokens,
        },
        "cut_streams": [
            {
                "n": call.n,
                "request_id": call.request_id,
                "tokens": len(call.token_at),
                "max_tokens": call.max_tokens,
                "error_type": call.error_type,
                "counted": any(call.n == other.n for other in measures.counted),
            }
            for call in measures.cut_streams
        ],
        "fault_timeline": plain(asdict(timeline)) if timeline else None,
    }


def _warning(warning: EarlyWarning) -> dict[str, Any]:
    first = warning.earliest
    return {
        "arm": warning.arm,
        "earliest_signal": first.signal.name if first else None,
        "moved_after_s": number(first.after_s) if first else None,
        "felt_after_s": number(warning.felt_after_s),
        "felt_by": warning.felt_by,
        "lead_s": number(warning.lead_s),
        "signals": {
            m.signal.name: {
                "moved_after_s": number(m.after_s),
                "sampled": m.sampled,
                "moves_in_control_too": m.in_control,
            }
            for m in warning.movements
        },
    }


def to_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON data; see docs/report.md."""
    run, measures = verdict.run, verdict.measures
    experiment = measures.evidence.experiment if measures else None
    end = measures.evidence.end if measures else None
    return {
        "schema": SCHEMA,
        "verdict": verdict.status,
        "exit_code": verdict.exit_code,
        "experiment": experiment.name if experiment else None,
        "question": experiment.question if experiment else None,
        "counted": None
        if experiment is None
        else {
            "selector": experiment.counted,
            "meaning": meaning(experiment.counted),
            "minimum": experiment.minimum_counted,
        },
        "run": None
        if run is None
        else {
            "substrate": run.substrate,
            "seed": run.seed,
            "without": list(run.without),
            "started_at": number(run.started_at),
            "ended_at": number(end.at) if end else None,
            "versions": plain(run.versions),
            "machine": plain(run.machine),
            "settings": plain(run.settings),
        },
        "checks": [
            {
                "name": check.name,
                "arm": check.arm,
                "status": check.status,
                "summary": check.summary,
                "crashed": check.crashed,
                "detail": plain(check.detail),
            }
            for check in verdict.checks
        ],
        "objectives": [_objective(result) for result in measures.objectives] if measures else [],
        "arms": [_arm(arm, verdict.timelines) for arm in measures.arms] if measures else [],
        "early_warnings": [_warning(warning) for warning in verdict.early_warnings],
        "calibration": [
            {
                "replicas": record.replicas,
                "calls_per_s": number(record.calls_per_s),
                "tokens_per_s": number(record.tokens_per_s),
                "shared_from": record.shared_from,
            }
            for record in (measures.evidence.calibrations if measures else ())
        ],
    }
