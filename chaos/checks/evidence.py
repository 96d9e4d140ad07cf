"""Whether the numbers may be believed: a complete history, the same load in all arms, enough of it, a fit machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from chaos import slo
from chaos.checks.check import Check, Status
from chaos.evidence import ArmEvidence, Evidence
from chaos.experiment import TIME_TO_DETECT, TIME_TO_RECOVER
from chaos.history import CallRecord
from chaos.measures import Measures
from chaos.selectors import ALL
from chaos.text import count, number

CALIBRATION_TOLERANCE: Final = 0.15
LATE_SEND_S: Final = 0.5
"""A load generator whose p99 send is later than this measures itself."""
FEWEST_OF_AN_OBJECTIVE: Final = 20
"""Calls of its own that an objective about a class or another window needs at least."""


def history_complete(measures: Measures) -> Iterator[Check]:
    """The history has a first and a last line, and the run was not broken off."""
    evidence = measures.evidence
    if evidence.run is None:
        summary = "the history has no run record: its first line is missing"
    elif evidence.end is None:
        summary = "the history has no last line: it was cut off"
    elif evidence.end.reason != "completed":
        summary = f"the run was broken off: {evidence.end.reason}"
    elif not evidence.arms:
        summary = "no arm was run"
    else:
        names = ", ".join(arm.name for arm in evidence.arms)
        yield Check("history_complete", "pass", f"the history is complete; arms: {names}")
        return
    yield Check("history_complete", "inconclusive", summary)


def _arrival(call: CallRecord) -> tuple[object, ...]:
    # Not prompt_tokens: it comes from the answer, and a call that failed has none.
    return round(call.offset_s, 6), call.prompt_sha, call.max_tokens, call.stream, call.call_class


def _doubled_or_lost(arm: ArmEvidence) -> str:
    numbers = [call.n for call in arm.calls]
    if len(set(numbers)) != len(numbers):
        return f"arm {arm.name!r} has two records of one call"
    if numbers and len(numbers) != numbers[-1] - numbers[0] + 1:
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
        return f"arm {arm.name!r} has no record of call {missing[0]} ({count(len(missing), 'call')} missing)"
    return ""


def same_arrivals(measures: Measures) -> Iterator[Check]:
    """Every arm was sent the same calls at the same offsets; an arm that ended sooner may have fewer at its end.

    What a burst added is the same in all arms that had the burst, and in no other.
    """
    arms = measures.evidence.arms
    if len(arms) < 2:
        yield Check("same_arrivals", "inconclusive", "fewer than two arms: nothing to compare")
        return
    problems = [problem for arm in arms if (problem := _doubled_or_lost(arm))]
    first: dict[int, tuple[str, CallRecord]] = {}
    shared = len(arms[0].calls)
    for arm in arms:
        if not arm.arm.fault and (added := [call.n for call in arm.calls if call.surge]):
            problems.append(f"arm {arm.name!r} has no fault, but was sent call {added[0]} of a burst")
        both = [(first[call.n], call) for call in arm.calls if call.n in first]
        if arm is not arms[0]:
            shared = min(shared, sum(1 for _, call in both if not call.surge))
        different = [(name, call.n) for (name, other), call in both if _arrival(other) != _arrival(call)]
        if different:
            name, number_ = different[0]
            problems.append(
                f"call {number_} is not the same in {name!r} and {arm.name!r} "
                f"({count(len(different), 'call')} in all)"
            )
        first = {**{call.n: (arm.name, call) for call in arm.calls}, **first}
    if problems:
        yield Check("same_arrivals", "fail", "; ".join(problems))
    elif not shared:
        yield Check("same_arrivals", "inconclusive", "the arms have no arrivals in common")
    else:
        yield Check("same_arrivals", "pass", f"the same {count(shared, 'arrival')} in {len(arms)} arms")


def minimum_counted(measures: Measures) -> Iterator[Check]:
    """Each arm has at least as many counted calls as the experiment asks for, and some for each single objective."""
    minimum = measures.evidence.experiment.minimum_counted
    for arm in measures.arms:
        name, counted = arm.evidence.name, len(arm.counted)
        detail = {"counted": counted, "minimum": minimum}
        if arm.problem:
            yield Check("minimum_counted", "inconclusive", arm.problem, name, detail)
        elif counted < minimum:
            summary = f"{count(counted, 'counted call')}, at least {minimum} are needed"
            yield Check("minimum_counted", "inconclusive", summary, name, detail)
        else:
            summary = f"{count(counted, 'counted call')}, at least {minimum} needed"
            yield Check("minimum_counted", "pass", summary, name, detail)
        for objective in measures.evidence.experiment.objectives:
            selection = arm.within(objective.scope)
            if objective.scope == ALL or objective.statistic in (TIME_TO_RECOVER, TIME_TO_DETECT):
                continue
            if not arm.evidence.arm.fault and not objective.relative_to_control:
                continue  # it is judged under the fault; here it only has to be measured
            found = len(selection.calls) if selection else 0
            if found < FEWEST_OF_AN_OBJECTIVE:
                why = (
                    arm.why_not(objective.scope)
                    or f"{count(found, 'call')}, {FEWEST_OF_AN_OBJECTIVE} are needed"
                )
                yield Check("minimum_counted", "inconclusive", f"{objective.describe()}: {why}", name)


def objectives_measured(measures: Measures) -> Iterator[Check]:
    """Every objective has a value in every arm: what is missing is not zero."""
    for arm in measures.arms:
        name = arm.evidence.name
        results = measures.results(name)
        unknown = [result for result in results if result.standing == "unknown"]
        if unknown or not results:
            why = "; ".join(f"{r.objective.describe()}: {r.reason}" for r in unknown)
            summary = why or "the experiment has no objectives"
            yield Check("objectives_measured", "inconclusive", summary, name)
        else:
            summary = f"{count(len(results), 'objective')} measured"
            yield Check("objectives_measured", "pass", summary, name)


def load_on_time(measures: Measures) -> Iterator[Check]:
    """The load generator sent when it should: otherwise the latencies are its own."""
    for arm in measures.evidence.arms:
        lags = [call.sent_at - call.scheduled_at for call in arm.calls]
        if not lags:
            yield Check("load_on_time", "inconclusive", "no calls were recorded", arm.name)
            continue
        lag = slo.percentile(lags, 0.99)
        status: Status = "pass" if lag <= LATE_SEND_S else "inconclusive"
        late = "" if status == "pass" else f", more than {number(LATE_SEND_S, 's')}: the load client was late"
        summary = f"99 % of the calls were sent at most {number(max(lag, 0.0), 's')} after their time{late}"
        yield Check("load_on_time", status, summary, arm.name, {"p99_s": lag})


def _before_the_fault(evidence: Evidence, arm: ArmEvidence) -> list[CallRecord]:
    start = arm.start_at
    if start is None:
        return []
    # Not until "injected": a kill takes a moment, and what breaks meanwhile is the fault's doing.
    until = arm.struck_at or start + evidence.scheduled_fault_s
    since = arm.phase_at("steady") or start
    return [call for call in arm.calls if call.scheduled_at >= since and call.ended_at < until]


def steady_state(measures: Measures) -> Iterator[Check]:
    """Before its fault an arm answers its calls; else what follows cannot be put down to the fault."""
    evidence = measures.evidence
    limit = next(
        (
            o.limit
            for o in evidence.experiment.objectives
            if o.statistic == "success_rate" and not o.relative_to_control
        ),
        0.99,
    )
    for arm in evidence.arms:
        calls = _before_the_fault(evidence, arm)
        rate = slo.SUCCESS_RATE.of(calls)
        if rate is None:
            summary = "no call ended between warm-up and fault, so the steady state is not known"
            yield Check("steady_state", "inconclusive", summary, arm.name)
            continue
        text = f"{number(rate, 'ratio')} of {count(len(calls), 'call')} before the fault were answered"
        if rate < limit:
            summary = f"only {text}, {number(limit, 'ratio')} are needed: it was not healthy to begin with"
            yield Check("steady_state", "inconclusive", summary, arm.name)
        else:
            yield Check("steady_state", "pass", text, arm.name)


def calibration(measures: Measures) -> Iterator[Check]:
    """Losing one of N replicas loses 1/N of the capacity; else the replicas share the machine."""
    if not measures.evidence.experiment.calibrate_loss:
        return
    by_replicas = {record.replicas: record for record in measures.evidence.calibrations}
    n = max(by_replicas, default=0)
    whole, less = by_replicas.get(n), by_replicas.get(n - 1)
    if whole is None or less is None or n < 2:
        summary = "the capacity with N and with N-1 replicas was not measured"
        yield Check("calibration", "inconclusive", summary)
        return
    if whole.calls_per_s <= 0 or less.calls_per_s <= 0:
        yield Check("calibration", "inconclusive", "the calibration measured no capacity")
        return
    found, expected = less.calls_per_s / whole.calls_per_s, (n - 1) / n
    detail = {"replicas": n, "ratio": found, "expected": expected, "tolerance": CALIBRATION_TOLERANCE}
    text = (
        f"{n - 1} of {n} replicas carry {number(found, 'ratio')} of the load that {n} carry, "
        f"expected {number(expected, 'ratio')}"
    )
    if abs(found / expected - 1) <= CALIBRATION_TOLERANCE:
        yield Check("calibration", "pass", text, detail=detail)
    else:
        doubt = "" if found > expected else ", or one was slow to take load"
        if found > 1:
            doubt = f", or something else had the CPU while all {n} were measured"
        summary = f"replicas share the CPU{doubt}: {text}, give or take 15 % of that"
        yield Check("calibration", "inconclusive", summary, detail=detail)
