"""The numbers of a run: what each arm did on its counted calls, and which objectives it kept.

Checkers and report read these, so that a number in a table is the very number that decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from chaos import course, slo
from chaos.course import Course
from chaos.evidence import ArmEvidence, Evidence
from chaos.experiment import GOODPUT, OF_AN_ARM, Objective
from chaos.goodness import Goodness, goodness
from chaos.history import CallRecord
from chaos.selectors import ALL, Scope, Selection, SelectionError, select
from chaos.slo import Estimate, Statistic

Standing = Literal["kept", "broken", "unknown", "reference"]
"""What an arm did with an objective; ``reference`` is the control arm where the objective is about a fault, or relative
to that arm itself."""


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """One objective in one arm. The value decides; the interval says how sure it is."""

    arm: str
    objective: Objective
    value: Estimate
    limit: float | None
    """In the statistic's own unit, multiplied out, allowance included. None when the control arm gives none."""
    ratio: Estimate | None
    """Value / control arm's value, paired, for relative objectives."""
    standing: Standing
    certain: bool
    """Whether the whole interval lies on the side of the limit on which the value lies."""
    reason: str = ""
    """Why it is unknown."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """Upstream attempts for each call of an arm, over the whole arm."""

    calls: int
    attempts: int
    repeated_prompt_tokens: int
    """Prompt tokens that were sent to a replica again by second and later attempts."""

    @property
    def ratio(self) -> float | None:
        return self.attempts / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class ArmMeasures:
    """One row of the table of arms."""

    evidence: ArmEvidence
    selection: Selection | None
    problem: str
    """Why the counted calls cannot be told; empty when they can."""
    statistics: Mapping[str, Estimate]
    longest_gap_s: float | None
    outcomes: Mapping[str, int]
    """Of the counted calls."""
    errors: Mapping[str, int]
    """Counted calls by type of error."""
    all_outcomes: Mapping[str, int]
    cut_streams: tuple[CallRecord, ...]
    amplification: Amplification | None
    selections: Mapping[Scope, Selection] = field(default_factory=dict)
    """The counted calls of each objective that has others than the experiment's."""
    problems: Mapping[Scope, str] = field(default_factory=dict)
    """Why those cannot be told."""
    courses: Mapping[str, Course] = field(default_factory=dict)
    """What the arm's course tells (:mod:`chaos.course`), by the statistic's name."""

    @property
    def counted(self) -> tuple[CallRecord, ...]:
        return self.selection.calls if self.selection else ()

    def within(self, scope: Scope) -> Selection | None:
        """Return the calls that an objective is about, or None when they cannot be told."""
        return self.selection if scope == ALL else self.selections.get(scope)

    def why_not(self, scope: Scope) -> str:
        """Return why the calls of an objective cannot be told; empty when they can."""
        return self.problem if scope == ALL else self.problems.get(scope, "")


@dataclass(frozen=True, slots=True)
class Measures:
    """All numbers of a run."""

    evidence: Evidence
    arms: tuple[ArmMeasures, ...]
    objectives: tuple[ObjectiveResult, ...]
    resamples: int
    goodness: Goodness

    def of(self, arm: ArmEvidence | None) -> ArmMeasures | None:
        """Return the measures of an arm, or None when there is no arm."""
        return next((m for m in self.arms if arm is not None and m.evidence.name == arm.name), None)

    def results(self, arm: str) -> tuple[ObjectiveResult, ...]:
        """Return the results of one arm."""
        return tuple(result for result in self.objectives if result.arm == arm)

    def compare(
        self,
        name: str,
        a: ArmMeasures,
        b: ArmMeasures,
        combine: Callable[[float, float], float],
        scope: Scope = ALL,
    ) -> Estimate:
        """Return ``combine(a, b)`` of a statistic over the calls of a scope, paired on the same arrivals.

        Raises:
            KeyError: no such statistic.
        """
        if name in OF_AN_ARM and name != GOODPUT:
            left, right = a.courses.get(name), b.courses.get(name)
            return course.compare(left, right, combine) if left and right else Estimate(None, None, None, 0)
        ours, theirs = a.within(scope), b.within(scope)
        if ours is None or theirs is None:
            return Estimate(None, None, None, 0)
        seed = f"{self.evidence.seed}/{a.evidence.name}/{b.evidence.name}"
        statistic = _statistics(self.goodness, ours)[name]
        return slo.compare(statistic, ours.calls, theirs.calls, combine, seed, self.resamples)


def is_cut(call: CallRecord) -> bool:
    """Tell whether a stream began to give tokens and then failed."""
    return call.stream and call.first_token_at is not None and call.outcome == "failed"


def _statistics(good: Goodness, selection: Selection | None) -> dict[str, Statistic]:
    """Return all statistics over calls; ``goodput`` takes its window from the selection."""
    every = dict(slo.STATISTICS)
    if selection and selection.window_s > 0:
        every[GOODPUT] = slo.goodput(selection.window_s, good.good)
    return every


def _amplification(arm: ArmEvidence, prompt_tokens: Mapping[int, int]) -> Amplification | None:
    """From the gateway's events; where there are none, from the attempts that the answers named."""
    prompts = {call.request_id: prompt_tokens.get(call.n, 0) for call in arm.calls}
    known = [attempt for attempt in arm.attempts() if attempt.request_id in prompts]
    if known:
        repeated = sum(prompts[attempt.request_id] for attempt in known if attempt.attempt > 1)
        return Amplification(len({a.request_id for a in known}), len(known), repeated)
    told = [call for call in arm.calls if call.attempts > 0]
    if not told:
        return None
    repeated = sum((call.attempts - 1) * prompt_tokens.get(call.n, 0) for call in told)
    return Amplification(len(told), sum(call.attempts for call in told), repeated)


def _prompt_tokens(evidence: Evidence) -> dict[int, int]:
    """Return the prompt length of each arrival: a call that failed has none, its twin in another arm may."""
    lengths: dict[int, int] = {}
    for arm in evidence.arms:
        for call in arm.calls:
            lengths[call.n] = max(call.prompt_tokens, lengths.get(call.n, 0))
    return lengths


def _selected(evidence: Evidence, arm: ArmEvidence, scope: Scope) -> tuple[Selection | None, str]:
    try:
        return select(evidence, arm, scope), ""
    except SelectionError as error:
        return None, str(error)


def _measure_arm(
    evidence: Evidence,
    arm: ArmEvidence,
    prompt_tokens: Mapping[int, int],
    resamples: int,
    good: Goodness,
) -> ArmMeasures:
    selection, problem = _selected(evidence, arm, ALL)
    scopes = {objective.scope for objective in evidence.experiment.objectives} - {ALL}
    scoped = {scope: _selected(evidence, arm, scope) for scope in sorted(scopes)}
    calls = selection.calls if selection else ()
    seed = f"{evidence.seed}/{arm.name}"
    wanted = _statistics(good, selection)
    gaps = [gap for call in calls for gap in slo.gaps_s(call)]
    return ArmMeasures(
        evidence=arm,
        selection=selection,
        problem=problem,
        statistics={name: slo.estimate(s, calls, seed, resamples) for name, s in wanted.items()},
        longest_gap_s=max(gaps, default=None),
        outcomes=dict(Counter(call.outcome for call in calls)),
        errors=dict(
            Counter(call.error_type or "unnamed" for call in calls if not slo.answered(call)).most_common()
        ),
        all_outcomes=dict(Counter(call.outcome for call in arm.calls)),
        cut_streams=tuple(call for call in arm.calls if is_cut(call)),
        amplification=_amplification(arm, prompt_tokens),
        selections={scope: found for scope, (found, _) in scoped.items() if found is not None},
        problems={scope: why for scope, (_, why) in scoped.items() if why},
        courses=course.courses(evidence, arm, evidence.role("control"), good.good, resamples),
    )


def _value(measures: Measures, arm: ArmMeasures, objective: Objective) -> Estimate:
    """Return what an arm did by an objective's statistic, over the objective's own calls."""
    name, selection = objective.statistic, arm.within(objective.scope)
    if name in OF_AN_ARM and name != GOODPUT:
        return arm.courses[name].estimate if name in arm.courses else Estimate(None, None, None, 0, "s")
    if objective.scope == ALL:
        return arm.statistics.get(name, Estimate(None, None, None, 0))
    statistics = _statistics(measures.goodness, selection)
    if selection is None or name not in statistics:
        return Estimate(None, None, None, 0)
    seed = f"{measures.evidence.seed}/{arm.evidence.name}/{objective.scope}"
    return slo.estimate(statistics[name], selection.calls, seed, measures.resamples)


def _holds(value: float, limit: float, higher_is_better: bool) -> bool:
    return value >= limit if higher_is_better else value <= limit


def _result(
    measures: Measures, arm: ArmMeasures, control: ArmMeasures | None, objective: Objective
) -> ObjectiveResult:
    name, arm_name = objective.statistic, arm.evidence.name
    value = _value(measures, arm, objective)

    def unknown(reason: str) -> ObjectiveResult:
        return ObjectiveResult(arm_name, objective, value, None, None, "unknown", False, reason)

    limit = bound = objective.limit + objective.allowance_s
    if arm is control and name in OF_AN_ARM and (name != GOODPUT or objective.relative_to_capacity):
        return ObjectiveResult(arm_name, objective, value, None, None, "reference", True)
    if value.value is None:
        return unknown(arm.why_not(objective.scope) or f"no counted call gives a {name}")
    higher_is_better = objective.higher_is_better
    if objective.relative_to_capacity:
        whole = max(measures.evidence.calibrations, key=lambda record: record.replicas, default=None)
        if whole is None or whole.calls_per_s <= 0:
            return unknown("the history has no calibrated capacity to compare with")
        limit = bound = objective.limit * whole.calls_per_s
    judged, ratio = value, None
    if objective.relative_to_control:
        if control is None:
            return unknown("the control arm was not run")
        reference = _value(measures, control, objective).value
        if reference is None or not math.isfinite(reference):
            return unknown(f"the control arm has no finite {name} to compare with")
        limit = objective.limit * reference + objective.allowance_s
        bound = slo.ratio(limit, reference)
        if arm is control:
            return ObjectiveResult(arm_name, objective, value, limit, None, "reference", True)
        judged = ratio = measures.compare(name, arm, control, slo.ratio, objective.scope)
    kept = _holds(value.value, limit, higher_is_better)
    ends = [end for end in (judged.low, judged.high) if end is not None]
    certain = len(ends) == 2 and all(_holds(end, bound, higher_is_better) == kept for end in ends)
    standing: Standing = "kept" if kept else "broken"
    return ObjectiveResult(arm_name, objective, value, limit, ratio, standing, certain)


def measure(evidence: Evidence, resamples: int = slo.RESAMPLES) -> Measures:
    """Compute every number of a run; the same evidence gives the same numbers."""
    prompt_tokens = _prompt_tokens(evidence)
    good = goodness(evidence.experiment, lambda objective: _control_value(evidence, objective))
    arms = tuple(_measure_arm(evidence, arm, prompt_tokens, resamples, good) for arm in evidence.arms)
    bare = Measures(evidence, arms, (), resamples, good)
    control = bare.of(evidence.role("control"))
    results = tuple(
        _result(bare, arm, control, objective) for arm in arms for objective in evidence.experiment.objectives
    )
    return Measures(evidence, arms, results, resamples, good)


def _control_value(evidence: Evidence, objective: Objective) -> float | None:
    control = evidence.role("control")
    found, _ = _selected(evidence, control, objective.scope) if control else (None, "")
    return slo.STATISTICS[objective.statistic].of(found.calls) if found else None
