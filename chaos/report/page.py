"""``report.html``: one page that opens alone, offline, without a script, and says first what it has to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from chaos import slo
from chaos.early_warning import SIGNALS
from chaos.measures import Measures
from chaos.report import plots, signal_plots, tables
from chaos.report.lane import lanes, phase_strip
from chaos.report.story import conclusion, moment, notes, story
from chaos.selectors import meaning
from chaos.text import clean, count
from chaos.verdict import Verdict

_HERE: Final = Path(__file__).parent
MOST_CUT: Final = 100
"""Rows in the table of cut streams; verdict.json has all of them."""


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
        signal_plots.attempts(every),
        *(signal_plots.signal(every, spec) for spec in SIGNALS),
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
        "cards": tables.cards(measures) if measures else [],
        "heads": [
            (lane.arm.name, tables.how(m), tables.standing(measures, lane.arm.name), phase_strip(lane))
            for lane in every
            if measures and (m := measures.of(lane.arm))
        ],
        "rows": _rows(measures) if every and measures else [],
        "outcomes": plots.OUTCOMES,
        "arms": [tables.arm_row(arm) for arm in measures.arms] if measures else [],
        "objectives": tables.objective_rows(measures) if measures else [],
        "warnings": [tables.warning_row(warning) for warning in verdict.early_warnings],
        "amplification": [tables.amplification(arm) for arm in measures.arms] if measures else [],
        "cut": cut[:MOST_CUT],
        "more_cut": max(0, len(cut) - MOST_CUT),
        "checks": sorted(verdict.checks, key=tables.order),
        "tally": ", ".join(
            count(len(verdict.of_status(s)), s, s)
            for s in ("fail", "inconclusive", "pass")
            if verdict.of_status(s)
        ),
        "facts": tables.facts(verdict),
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
