"""What only the course of an arm tells, and no set of calls: how soon it was noticed, and how soon it was over.

- **time_to_detect**: from the moment at which the fault began to strike until the gateway took the target out of
  rotation; *never* when it did not. Observed once an arm, so it has no interval.
- **time_to_recover**: from the fault's end until goodput is back. Arrivals after the revert are put into bins of
  one second; the arm is back at the begin of the first bin from which on three bins in a row have at least 90 % of
  the good calls that the control arm made of the very same arrivals; *never* when the arm ended before that. The
  interval comes from resampling the arrivals within each bin.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.evidence import ArmEvidence, Evidence
from chaos.experiment import TIME_TO_DETECT, TIME_TO_RECOVER
from chaos.history import CallRecord
from chaos.slo import interval_of
from chaos.statistic import Estimate
from chaos.timeline import timeline

BIN_S: Final = 1.0
BACK_SHARE: Final = 0.9
BACK_BINS: Final = 3

Pair = tuple[bool, bool]
"""Whether the same arrival became a good call in the arm, and in the control arm."""


@dataclass(frozen=True, slots=True)
class Course:
    """A number of an arm's course; ``draws`` are what resampling made of it, empty where it cannot be resampled."""

    estimate: Estimate
    draws: tuple[float, ...] = ()


def reverted_offset_s(evidence: Evidence, arm: ArmEvidence) -> float | None:
    """Return when the arm's fault was taken back (in the control arm: when it would have been), from its start.

    The last, when there were several; None when none was.
    """
    if not arm.arm.fault:
        return evidence.scheduled_fault_s + evidence.experiment.phases.hold_s
    reverted = [record.at for record in arm.faults if record.step == "reverted"]
    return max(reverted) - arm.start_at if reverted and arm.start_at is not None else None


def bins_after(
    arm: ArmEvidence, control: ArmEvidence, since_s: float, until_s: float, good: Callable[[CallRecord], bool]
) -> list[list[Pair]]:
    """Return, for each whole second from ``since_s`` to ``until_s``, what became of its arrivals in both arms."""
    reference = {call.n: call for call in control.calls}
    bins: list[list[Pair]] = [[] for _ in range(max(0, int((until_s - since_s) / BIN_S)))]
    for call in arm.calls:
        number = math.floor((call.offset_s - since_s) / BIN_S)
        if 0 <= number < len(bins) and call.n in reference:
            bins[number].append((good(call), good(reference[call.n])))
    return bins


def back_after_s(bins: Sequence[Sequence[Pair]]) -> float:
    """Return the seconds until the arm was back, by the rule of this module; ``inf`` when it was not."""

    def back(pairs: Sequence[Pair]) -> bool:
        return sum(ours for ours, _ in pairs) >= BACK_SHARE * sum(theirs for _, theirs in pairs)

    for first in range(len(bins) - BACK_BINS + 1):
        if all(back(pairs) for pairs in bins[first : first + BACK_BINS]):
            return first * BIN_S
    return math.inf


def time_to_recover(
    evidence: Evidence,
    arm: ArmEvidence,
    control: ArmEvidence | None,
    good: Callable[[CallRecord], bool],
    resamples: int,
) -> Course | None:
    """Return the time to recover of an arm, or None when it cannot be told."""
    since_s = reverted_offset_s(evidence, arm)
    if control is None or since_s is None:
        return None
    phases = evidence.experiment.phases
    until_s = evidence.scheduled_fault_s + phases.hold_s + phases.recovery_s
    bins = bins_after(arm, control, since_s, until_s, good)
    if len(bins) < BACK_BINS or not any(theirs for pairs in bins for _, theirs in pairs):
        return None
    chance = random.Random(f"{evidence.seed}/{arm.name}/recover")
    draws = tuple(
        back_after_s([chance.choices(pairs, k=len(pairs)) if pairs else [] for pairs in bins])
        for _ in range(resamples)
    )
    arrivals = sum(len(pairs) for pairs in bins)
    return Course(Estimate(back_after_s(bins), *interval_of(draws), arrivals, "s", "bootstrap"), draws)


def time_to_detect(evidence: Evidence, arm: ArmEvidence) -> Course | None:
    """Return the time to detect of an arm, or None when no fault was injected."""
    course = timeline(evidence, arm)
    if course is None:
        return None
    value = math.inf if course.detected_s is None else course.detected_s
    return Course(Estimate(value, None, None, 1, "s"))


def courses(
    evidence: Evidence,
    arm: ArmEvidence,
    control: ArmEvidence | None,
    good: Callable[[CallRecord], bool],
    resamples: int,
) -> dict[str, Course]:
    """Return those of an arm's numbers that the experiment's objectives ask for and that can be told."""
    asked = {objective.statistic for objective in evidence.experiment.objectives}
    found: dict[str, Course | None] = {}
    if TIME_TO_RECOVER in asked:
        found[TIME_TO_RECOVER] = time_to_recover(evidence, arm, control, good, resamples)
    if TIME_TO_DETECT in asked:
        found[TIME_TO_DETECT] = time_to_detect(evidence, arm)
    return {name: course for name, course in found.items() if course is not None}


def compare(a: Course, b: Course, combine: Callable[[float, float], float]) -> Estimate:
    """Return ``combine(a, b)``, with an interval where both were resampled."""
    if a.estimate.value is None or b.estimate.value is None:
        return Estimate(None, None, None, 0, "s")
    value = combine(a.estimate.value, b.estimate.value)
    if not a.draws or not b.draws:
        return Estimate(value, None, None, 1, "s")
    draws = [combine(left, right) for left, right in zip(a.draws, b.draws, strict=False)]
    return Estimate(value, *interval_of(draws), b.estimate.n, "s", "bootstrap")
