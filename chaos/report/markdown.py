"""``report.md``: the verdict for places that show text, such as a pull request or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from chaos.report.story import conclusion, first_signal, moment, notes, story
from chaos.text import clean, estimate, number
from chaos.verdict import Verdict

_SPECIAL: Final = re.compile(r"([\\`*|]|(?<!\w)_|_(?!\w)|\](?=[(\[:]))")
"""What Markdown would take for its own; underscores inside words and ordinary brackets stay readable."""
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _TAG.sub("&lt;", _SPECIAL.sub(r"\\\1", " ".join(clean(text).split())))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows), ""]


def markdown(verdict: Verdict) -> str:
    """Return the report as Markdown."""
    measures, run = verdict.measures, verdict.run
    experiment = measures.evidence.experiment if measures else None
    lines = [f"# {escaped(experiment.name if experiment else 'unknown experiment')}: {verdict.status}", ""]
    if run:
        facts = [f"substrate {run.substrate}", f"seed {run.seed}", moment(run.started_at)]
        lines += [escaped(", ".join(facts)), ""]
    if experiment:
        lines += [f"**Asked:** {escaped(experiment.question)}", ""]
    lines += [f"**Verdict:** {escaped(conclusion(verdict))}", ""]
    if len(verdict.deciding) > 1:
        lines += [
            *(
                f"- {escaped(c.name)}{' ' + escaped(f'({c.arm})') if c.arm else ''}: {escaped(c.summary)}"
                for c in verdict.deciding[1:]
            ),
            "",
        ]
    told = story(verdict)
    if told:
        lines += [
            "## What happened",
            "",
            *(f"- **{escaped(arm)}:** {escaped(said)}" for arm, said in told),
            "",
        ]
    if measures:
        lines += ["## Arms (counted calls; value [95 % interval])", ""]
        names = ("success_rate", "ttft_p50", "ttft_p95", "e2e_p95")
        lines += _table(
            ["arm", "counted", "answered", "TTFT p50", "TTFT p95", "E2E p95", "outcomes"],
            (
                [
                    arm.evidence.name,
                    str(len(arm.counted)),
                    *(estimate(arm.statistics[name]) for name in names),
                    ", ".join(f"{n} {outcome}" for outcome, n in arm.outcomes.items()),
                ]
                for arm in measures.arms
            ),
        )
        lines += ["## Objectives", ""]
        lines += _table(
            ["objective", "arm", "value [95 % interval]", "limit", "standing"],
            (
                [
                    r.objective.describe(),
                    r.arm,
                    estimate(r.value),
                    "not known" if r.limit is None else number(r.limit, r.value.unit),
                    r.standing + (f": {r.reason}" if r.reason else ""),
                ]
                for r in measures.objectives
            ),
        )
        lines += ["## Retry amplification", ""]
        lines += _table(
            ["arm", "calls", "attempts", "attempts / call", "prompt tokens sent again"],
            (
                [
                    arm.evidence.name,
                    str(a.calls),
                    str(a.attempts),
                    number(a.ratio, "x"),
                    str(a.repeated_prompt_tokens),
                ]
                for arm in measures.arms
                if (a := arm.amplification)
            ),
        )
    if verdict.early_warnings:
        lines += ["## Earliest signal", ""]
        for warning in verdict.early_warnings:
            lines.append(f"- **{escaped(warning.arm)}:** {escaped(first_signal(warning))}")
        lines.append("")
    lines += ["## Checks", ""]
    lines += _table(
        ["result", "check", "arm", "finding"],
        ([c.status, c.name, c.arm or "run", c.summary] for c in verdict.checks),
    )
    lines += [*(f"> {escaped(note)}\n" for note in notes(verdict))]
    return "\n".join(lines).rstrip() + "\n"
