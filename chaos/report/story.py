"""What was asked and what happened, in sentences: a reader who sees nothing else should know what the run showed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from chaos.checks.streams import TYPED_ERRORS
from chaos.early_warning import SIGNALS, EarlyWarning
from chaos.measures import ArmMeasures
from chaos.text import count, number
from chaos.timeline import Timeline
from chaos.verdict import Verdict

PACED: Final = "replicas are paced: modelled step time"
TOGETHER_S: Final = 0.1
"""Differences below this are no warning: nobody could have acted."""


def moment(at: float, fraction: bool = False) -> str:
    """Return a time of day or a date in UTC."""
    form = "%H:%M:%S.%f" if fraction else "%Y-%m-%d %H:%M:%S"
    text = datetime.fromtimestamp(at, UTC).strftime(form)
    return f"{text[:-4] if fraction else text} UTC"


def seconds(value: float) -> str:
    """Return a duration as text, never with more digits than it deserves."""
    return (
        f"{value * 1000:.0f} ms" if value < 0.0995 else f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    )


def conclusion(verdict: Verdict) -> str:
    """Return the verdict in one or two sentences."""
    if verdict.status == "pass":
        teeth = next((c.summary for c in verdict.checks if c.name == "fault_has_teeth"), "")
        hurts = f"The fault hurts: {teeth}. " if teeth else ""
        return f"{hurts}With the policies on, every objective is kept and every check passes."
    deciding = verdict.deciding
    word = "failed" if verdict.status == "fail" else "could not be decided"
    first = deciding[0]
    where = f" ({first.arm})" if first.arm else ""
    lead = "First of all: " if len(deciding) > 1 else ""
    text = f"{count(len(deciding), 'check')} {word}. {lead}{first.name}{where}: {first.summary}."
    if verdict.status == "inconclusive":
        text = f"This run shows nothing either way: {text}"
    return text


def _struck(timeline: Timeline) -> str:
    late = max(0.0, timeline.struck_offset_s - timeline.scheduled_offset_s)
    took = f" Striking took {seconds(timeline.took_s)}." if timeline.took_s >= 0.1 else ""
    held = ""
    if timeline.awaiting is not None and timeline.streaming is not None:
        held = (
            f", while it held {count(timeline.streaming, 'streaming call')} and "
            f"{count(timeline.awaiting, 'call')} that awaited the first token"
        )
    fault = timeline.kind.replace("_", " ")
    return (
        f"At {moment(timeline.struck_at, fraction=True)}, {seconds(timeline.struck_offset_s)} into the arm and "
        f"{seconds(late)} after its scheduled time, {fault} struck {timeline.target}{held}.{took}"
    )


def _aftermath(timeline: Timeline) -> list[str]:
    said = []
    if timeline.verified_s is not None:
        said.append(f"That it took effect was verified from outside {seconds(timeline.verified_s)} later.")
    if timeline.detected_s is not None:
        how = "ejected it" if timeline.detected_by == "ejected" else "was told that it is gone"
        said.append(f"The gateway {how} after {seconds(timeline.detected_s)}.")
    if timeline.replaced_s is not None:
        text = f"Its replacement {timeline.replaced_by} joined after {seconds(timeline.replaced_s)}"
        if timeline.first_token_s is not None:
            text += f" and gave its first token at {seconds(timeline.first_token_s)}"
        said.append(text + ".")
    if timeline.reverted_s is not None:
        said.append(f"The fault was reverted after {seconds(timeline.reverted_s)}.")
    return said


def _fate(arm: ArmMeasures) -> list[str]:
    if not arm.selection:
        return [f"Its counted calls cannot be told: {arm.problem}."]
    outcomes = dict(arm.outcomes)
    good = outcomes.pop("ok", 0)
    rest = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    waiting = len(arm.selection.awaiting)
    of_them = f" ({waiting} of them awaited their first token on the victim)" if waiting else ""
    said = [
        f"Of {count(len(arm.counted), 'counted call')}{of_them} {good} were answered{'; ' + rest if rest else ''}."
    ]
    p95 = arm.statistics["ttft_p95"]
    if p95.value is not None:
        said.append(f"TTFT p95: {number(p95.value, 's')}.")
    if arm.cut_streams:
        typed = sum(1 for call in arm.cut_streams if call.error_type in TYPED_ERRORS)
        verb = "was" if len(arm.cut_streams) == 1 else "were"
        said.append(
            f"{count(len(arm.cut_streams), 'stream')} {verb} cut after the first token "
            f"({typed} with a typed error event)."
        )
    return said


def story(verdict: Verdict) -> list[tuple[str, str]]:
    """Return (arm, what happened in it) for every arm that was run, in order."""
    told = []
    for arm in verdict.measures.arms if verdict.measures else ():
        timeline = next((t for t in verdict.timelines if t.arm == arm.evidence.name), None)
        if timeline:
            said = [_struck(timeline), *_aftermath(timeline)]
        elif arm.evidence.arm.fault:
            said = ["The fault was not injected."]
        else:
            said = [f"No fault, the same arrivals: {count(len(arm.evidence.calls), 'call')}."]
        told.append((arm.evidence.name, " ".join([*said, *_fate(arm)])))
    return told


def _against_users(after_s: float, felt_after_s: float | None) -> str:
    if felt_after_s is None:
        return "nobody felt it"
    lead = felt_after_s - after_s
    if abs(lead) < TOGETHER_S:
        return "together with the users"
    return f"{seconds(abs(lead))} {'before' if lead > 0 else 'after'} users felt it"


def first_signal(warning: EarlyWarning) -> str:
    """Return which signal moved first, and how long before or after the users felt it."""
    first = warning.earliest
    if first is None or first.after_s is None:
        return "No signal left its steady range."
    said = (
        f"{first.signal.title} moved first, {seconds(first.after_s)} after the fault: "
        f"{_against_users(first.after_s, warning.felt_after_s)}."
    )
    sampled = [
        m for m in warning.movements if m.signal in SIGNALS and not m.in_control and m.after_s is not None
    ]
    if first.signal not in SIGNALS and sampled:
        best = min(sampled, key=lambda m: m.after_s or 0.0)
        after_s = best.after_s or 0.0
        said += (
            f" Of the sampled signals {best.signal.title.lower()} was first, {seconds(after_s)} after the fault: "
            f"{_against_users(after_s, warning.felt_after_s)}."
        )
    return said


def notes(verdict: Verdict) -> list[str]:
    """Return what a reader must know before believing a number."""
    said = []
    pace = str(verdict.run.settings.get("pace", "")) if verdict.run else ""
    if pace == "on":
        said.append(
            f"The {PACED}. The engine, its scheduler, batching, KV cache and queue are real; how long a step takes is "
            "a setting. Latencies are comparable between arms of a run, and are not those of an accelerator."
        )
    elif not pace:
        said.append("The history does not say whether the replicas were paced.")
    said.append(
        "A small machine shows how scheduler, queue, policies and faults behave. It does not show kernel speed, memory "
        "bandwidth, network fabrics, or what a gateway costs at thousands of streams."
    )
    if verdict.run and verdict.run.without:
        said.append(f"The arm with the policies on lacks: {', '.join(verdict.run.without)}.")
    return said
