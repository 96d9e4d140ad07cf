"""The three claims of an experiment: the fault hurts, the policies help, and the machine was fit to show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chaos import slo
from chaos.checks.check import Check
from chaos.experiment import CLIENTS
from chaos.machine import MACHINE_ALONE, MOST_OTHERS, OTHERS_SHARE
from chaos.measures import ArmMeasures, Measures, ObjectiveResult
from chaos.text import count, estimate, number


def _said(result: ObjectiveResult) -> str:
    """Return an objective's result in words: ``ttft_p95 <= 3 x control: 0.31 s, limit 0.44 s``."""
    text = f"{result.objective.describe()}: {number(result.value.value, result.value.unit)}"
    relative = result.objective.relative_to_control or result.objective.relative_to_capacity
    if relative and result.limit is not None:
        text += f", limit {number(result.limit, result.value.unit)}"
    return text


def improvement(
    measures: Measures, result: ObjectiveResult, worse: ArmMeasures, better: ArmMeasures
) -> slo.Estimate:
    """Return how much better the second arm is, positive when it is better, paired on the same arrivals."""
    objective = result.objective
    pair = (better, worse) if objective.higher_is_better else (worse, better)
    return measures.compare(objective.statistic, *pair, slo.difference, objective.scope)


def _lacking(arm: ArmMeasures) -> str:
    """Return in words what the arm that shows the fault's teeth goes without."""
    profile, clients = arm.evidence.arm.profile, arm.evidence.arm.clients
    if clients:
        return f"with clients who {CLIENTS[clients]}"
    return "with the policies off" if profile == "naive" else f"with the profile {profile!r}"


def _what_helps(arm: ArmMeasures) -> str:
    return "the resilient arm gains" if arm.evidence.arm.clients else "the policies gain"


def _disturbed(arm: ArmMeasures) -> str:
    """Return in words that others had the machine while the arm ran, where that alone can break an objective."""
    seen = [check.detail.get(OTHERS_SHARE) for check in arm.evidence.checks if check.name == MACHINE_ALONE]
    shares = [share for share in seen if isinstance(share, int | float)]
    if not shares or max(shares) <= MOST_OTHERS:
        return ""
    return f"something else had {number(max(shares), 'ratio')} of the processors meanwhile"


def control_healthy(measures: Measures) -> Iterator[Check]:
    """Without a fault, the control arm keeps every absolute objective; else the run shows nothing."""
    control = measures.of(measures.evidence.role("control"))
    if control is None:
        yield Check("control_healthy", "inconclusive", "the control arm was not run")
        return
    absolute = [
        r
        for r in measures.results(control.evidence.name)
        if not r.objective.relative_to_control and r.standing != "reference"
    ]
    bad = [r for r in absolute if r.standing != "kept"]
    if bad:
        what = "; ".join(r.reason or _said(r) for r in bad)
        summary = f"without any fault the control arm does not keep its objectives ({what})"
        yield Check("control_healthy", "inconclusive", summary, control.evidence.name)
    elif degraded := control.all_outcomes.get("degraded", 0):
        # What is degraded without a fault hides what a fault degrades; calls that are not counted show it as well.
        summary = f"without any fault {degraded} of {sum(control.all_outcomes.values())} calls were degraded"
        yield Check("control_healthy", "inconclusive", summary, control.evidence.name)
    elif control.problem or not control.counted:
        summary = control.problem or "the control arm has no counted calls"
        yield Check("control_healthy", "inconclusive", summary, control.evidence.name)
    else:
        kept = "; ".join(_said(r) for r in absolute) or "no absolute objectives"
        yield Check("control_healthy", "pass", f"without a fault: {kept}", control.evidence.name)


def fault_has_teeth(measures: Measures) -> Iterator[Check]:
    """With the policies off the fault breaks an objective, and the policies' difference there is significant."""
    naive = measures.of(measures.evidence.role("naive"))
    if naive is None:
        yield Check("fault_has_teeth", "inconclusive", "no arm with the policies off was run")
        return
    arm = naive.evidence.name
    results = measures.results(arm)
    broken = [r for r in results if r.standing == "broken"]
    unknown = [r for r in results if r.standing == "unknown"]
    if naive.problem:
        yield Check("fault_has_teeth", "inconclusive", naive.problem, arm)
    elif naive.evidence.step("verified") is None:
        summary = "the fault was not verified in this arm, so what happened cannot be put down to it"
        yield Check("fault_has_teeth", "inconclusive", summary, arm)
    elif broken:
        yield _significance(measures, naive, broken)
    elif unknown or not results:
        why = "; ".join(r.reason for r in unknown) or "the experiment has no objectives"
        yield Check("fault_has_teeth", "inconclusive", f"cannot be told: {why}", arm)
    else:
        kept = "; ".join(_said(r) for r in results)
        how = _lacking(naive)
        summary = f"the fault has no teeth: {how} every objective was kept ({kept})"
        yield Check("fault_has_teeth", "fail", summary, arm)


def _significance(measures: Measures, naive: ArmMeasures, broken: list[ObjectiveResult]) -> Check:
    arm = naive.evidence.name
    resilient = measures.of(measures.evidence.role("resilient"))
    if resilient is None or resilient.problem:
        why = resilient.problem if resilient else "no arm with the policies on was run to compare with"
        return Check("fault_has_teeth", "inconclusive", f"it breaks {_said(broken[0])}, but {why}", arm)
    found = [(r, improvement(measures, r, naive, resilient)) for r in broken]
    significant = [(r, gain) for r, gain in found if gain.low is not None and gain.low > 0]
    detail: dict[str, Any] = {
        r.objective.statistic: {"difference": gain.value, "low": gain.low, "high": gain.high}
        for r, gain in found
    }
    (result, gain), how = (significant or found)[0], _lacking(naive)
    if significant:
        summary = f"{how} it breaks {_said(result)}; {_what_helps(naive)} {estimate(gain)}"
        return Check("fault_has_teeth", "pass", summary, arm, detail)
    summary = (
        f"{how} it breaks {_said(result)}, but the difference to arm "
        f"{resilient.evidence.name!r} is not significant: {estimate(gain)}"
    )
    return Check("fault_has_teeth", "inconclusive", summary, arm, detail)


def policies_work(measures: Measures) -> Iterator[Check]:
    """With the policies on, every objective is kept under the fault. One check an objective.

    What breaks while something else has the machine is not put down to the policies. A smaller sample than the
    experiment asks for can still prove one broken, but only with its whole interval.
    """
    resilient = measures.of(measures.evidence.role("resilient"))
    if resilient is None:
        yield Check("policies_work", "inconclusive", "no arm with the policies on was run under the fault")
        return
    arm = resilient.evidence.name
    control = measures.evidence.role("control")
    broken_by_control = {
        r.objective for r in measures.results(control.name if control else "") if r.standing == "broken"
    }
    results, minimum = measures.results(arm), measures.evidence.experiment.minimum_counted
    if not results:
        yield Check("policies_work", "inconclusive", "the experiment has no objectives", arm)
    for result in results:
        name = f"policies_work: {result.objective.describe()}"
        if result.standing == "unknown":
            yield Check(name, "inconclusive", result.reason, arm)
        elif result.standing == "kept":
            yield Check(name, "pass", f"kept ({_said(result)})", arm)
        elif result.objective in broken_by_control:
            summary = f"broken ({_said(result)}), but without any fault it is broken too"
            yield Check(name, "inconclusive", summary, arm)
        elif not result.certain and len(resilient.counted) < minimum:
            few = count(len(resilient.counted), "counted call")
            summary = f"broken ({_said(result)}), but {few} of {minimum} are too few to be sure of it"
            yield Check(name, "inconclusive", summary, arm)
        elif others := _disturbed(resilient):
            yield Check(name, "inconclusive", f"broken ({_said(result)}), but {others}", arm)
        else:
            yield Check(name, "fail", f"broken under the fault ({_said(result)})", arm)
