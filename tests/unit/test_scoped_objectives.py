"""Objectives about a class, another window, the capacity, or an arm's course; on calls made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from chaos import checks, course, slo
from chaos.checks import claims, evidence, signs, streams
from chaos.checks.check import Check, Checker, worst
from chaos.evidence import sort
from chaos.experiment import Arm, CallClass, Experiment, FaultPlan, Load, Objective, Phases, Sign
from chaos.goodness import Limits
from chaos.history import (
    CalibrationRecord,
    CallRecord,
    EndRecord,
    FaultRecord,
    GatewayEventRecord,
    PhaseRecord,
    Record,
    RunRecord,
    SignalRecord,
)
from chaos.measures import Measures, measure
from chaos.names import UnknownName

RESAMPLES = 100
ARMS = (
    Arm("control", "resilient", fault=False),
    Arm("retry_only", "retry-only", fault=True),
    Arm("resilient", "resilient", fault=True),
)
CLASSES = (
    CallClass("critical", 0.5, (8, 12), (6, 10)),
    CallClass("bulk", 0.5, (8, 12), (6, 10)),
)
EXPERIMENT = Experiment(
    name="storm",
    question="does it come back?",
    load=Load(share=0.8, classes=CLASSES),
    faults=(FaultPlan("latency", "replica-*", every=True),),
    objectives=(Objective("success_rate", 1.0),),
    counted="hold_window",
    minimum_counted=1,
    phases=Phases(warm_up_s=1, steady_s=4, hold_s=5, recovery_s=10),
    arms=ARMS,
)
FAULT_S, REVERT_S, END_S = 5.0, 10.0, 20.0
Fate = Callable[[float, str], str]
"""From an arrival's offset and class to its outcome."""


def fine(offset_s: float, name: str) -> str:
    return "ok"


def call(arm: str, n: int, start_at: float, offset_s: float, name: str, outcome: str) -> CallRecord:
    at, good = start_at + offset_s, outcome in ("ok", "slow")
    first = at + (3.0 if outcome == "slow" else 0.1)
    return CallRecord(
        arm=arm,
        n=n,
        request_id=f"{arm}-{n}",
        offset_s=offset_s,
        scheduled_at=at,
        sent_at=at,
        ended_at=first + 0.2,
        stream=True,
        prompt_sha=f"p{n}",
        prompt_tokens=10 if good else 0,
        max_tokens=3,
        outcome="ok" if good else outcome,  # type: ignore[arg-type]
        status=200,
        first_token_at=first if good else None,
        token_at=[first, first + 0.1, first + 0.2] if good else [],
        output_tokens=3 if good else 0,
        finish_reason="length" if good else "",
        done=good,
        text_sha=f"t{n}" if good else "",
        call_class=name,
    )


def history(
    experiment: Experiment = EXPERIMENT,
    *,
    retry_only: Fate = fine,
    resilient: Fate = fine,
    per_s: int = 10,
) -> list[Record]:
    """A whole history: ``per_s`` arrivals a second in turn of both classes, a fault from 5 s to 10 s, 20 s in all."""
    found: list[Record] = [
        CalibrationRecord(3, 12.0, 100.0, 7.0, 80),
        CalibrationRecord(2, 8.0, 66.0, 7.0, 50),
    ]
    run = RunRecord({}, "local", 7, [], {}, {}, {}, 0.0)
    fates: dict[str, Fate] = {"control": fine, "retry_only": retry_only, "resilient": resilient}
    for number, arm in enumerate(experiment.arms):
        start_at = 1000.0 * (number + 1)
        found.append(PhaseRecord(arm.name, "steady", start_at + 1))
        for n in range(int(END_S * per_s)):
            offset_s, name = n / per_s + 0.01, CLASSES[n % 2].name
            outcome = fates[arm.name](offset_s, name)
            found.append(call(arm.name, n, start_at, offset_s, name, outcome))
        steps = [("scheduled", FAULT_S)]
        if arm.fault:
            steps += [("injected", FAULT_S), ("verified", FAULT_S + 1), ("reverted", REVERT_S)]
        for target in ("replica-0.a", "replica-1.b"):
            for step, offset_s in steps:
                named = target.split(".")[0] if step == "scheduled" else target
                found.append(FaultRecord(arm.name, "latency", named, step, start_at + offset_s))
    from dataclasses import asdict

    return [replace(run, experiment=asdict(experiment)), *found, EndRecord(5000.0)]


def measured(records: Sequence[Record]) -> Measures:
    return measure(sort(records), RESAMPLES)


def with_objectives(*objectives: Objective) -> Experiment:
    return replace(EXPERIMENT, objectives=objectives)


def found(checker: Checker, records: Sequence[Record], arm: str = "") -> list[Check]:
    return [check for check in checks.run(checker, measured(records)) if arm in ("", check.arm)]


def status(checker: Checker, records: Sequence[Record], arm: str = "") -> str:
    return worst(check.status for check in found(checker, records, arm))


def until(end_s: float, outcome: str = "failed", of: str = "") -> Fate:
    """Calls that arrive from the fault until ``end_s`` end badly; only those of a class when it is given."""
    return lambda offset_s, name: outcome if FAULT_S <= offset_s < end_s and of in ("", name) else "ok"


# --- scopes ------------------------------------------------------------------------------------------------


def test_an_objective_about_a_class_counts_its_calls_only() -> None:
    asked = with_objectives(
        Objective("success_rate", 1.0, call_class="critical"),
        Objective("success_rate", 1.0, call_class="bulk"),
    )
    results = measured(history(asked, resilient=until(10, of="bulk"))).results("resilient")
    assert [r.standing for r in results] == ["kept", "broken"]
    assert [r.value.n for r in results] == [25, 25]
    assert status(claims.policies_work, history(asked, resilient=until(10, of="bulk"))) == "fail"


def test_an_objective_may_leave_out_the_first_seconds_and_count_another_window() -> None:
    noticed = until(7)
    for objective, standing, n in (
        (Objective("success_rate", 1.0), "broken", 50),
        (Objective("success_rate", 1.0, from_s=2.0), "kept", 30),
        (Objective("success_rate", 1.0, counted="after_revert"), "kept", 100),
        (Objective("success_rate", 1.0, counted="after_revert", from_s=4.0), "kept", 60),
        (Objective("success_rate", 1.0, call_class="bulk", counted="after_revert"), "kept", 50),
    ):
        (result,) = measured(history(with_objectives(objective), resilient=noticed)).results("resilient")
        assert (result.standing, result.value.n) == (standing, n), objective.describe()


def test_an_objective_relative_to_control_compares_the_same_scope() -> None:
    asked = with_objectives(Objective("ttft_p95", 3.0, relative_to_control=True, call_class="critical"))
    kept = measured(history(asked, resilient=until(10, "slow", of="bulk"))).results("resilient")[0]
    broken = measured(history(asked, resilient=until(10, "slow", of="critical"))).results("resilient")[0]
    assert (kept.standing, broken.standing) == ("kept", "broken")
    assert kept.limit == pytest.approx(0.3)
    assert broken.ratio is not None
    assert broken.ratio.value == pytest.approx(30)


def test_an_unknown_selector_of_an_objective_is_inconclusive_and_said() -> None:
    records = history(with_objectives(Objective("success_rate", 1.0, counted="after_revrt")))
    (check,) = found(claims.policies_work, records)
    assert check.status == "inconclusive"
    assert "after_revert" in check.summary


def test_objectives_say_in_words_what_they_are_about() -> None:
    assert (
        Objective(
            "goodput", 0.9, relative_to_capacity=True, call_class="bulk", counted="after_revert", from_s=4
        ).describe()
        == "goodput of bulk in after_revert from 4 s on >= 0.9 x capacity"
    )
    assert Objective("time_to_recover", 5).describe() == "time_to_recover <= 5"
    with pytest.raises(ValueError, match="'goodput' alone"):
        Objective("ttft_p95", 0.9, relative_to_capacity=True)
    with pytest.raises(ValueError, match="0 or more"):
        Objective("ttft_p95", 0.9, from_s=-1)
    with pytest.raises(UnknownName, match="time_to_recover"):
        Objective("time_to_recovr", 5)


def test_an_objective_of_too_few_calls_of_its_own_is_inconclusive() -> None:
    asked = with_objectives(
        Objective("success_rate", 1.0, call_class="critical"),
        Objective("ttft_p95", 3.0, relative_to_control=True, call_class="bulk"),
    )
    assert status(evidence.minimum_counted, history(asked)) == "pass"
    few = [c for c in found(evidence.minimum_counted, history(asked, per_s=4)) if c.status != "pass"]
    assert all("20 are needed" in check.summary for check in few)
    # Without the fault only what the other arms are compared with has to be known so well.
    told = [(check.arm, check.summary.split(" ")[2]) for check in few]
    assert told == [
        ("control", "bulk"),
        ("retry_only", "critical"),
        ("retry_only", "bulk"),
        ("resilient", "critical"),
        ("resilient", "bulk"),
    ]


# --- goodput -----------------------------------------------------------------------------------------------


def test_goodput_counts_calls_within_the_limits_of_their_own_class() -> None:
    asked = with_objectives(
        Objective("ttft_p95", 1.0, call_class="critical"),
        Objective("ttft_p95", 20.0, relative_to_control=True, call_class="bulk"),
        Objective("e2e_p95", 9.0),
        Objective("goodput", 0.9, relative_to_control=True),
    )
    measures = measured(history(asked, resilient=until(10, "slow")))
    limits = measures.goodness.by_class
    assert limits["critical"] == Limits(1.0, 9.0)
    assert limits["bulk"].ttft_s == pytest.approx(2.0)
    slow = measures.results("resilient")[3]
    assert (slow.standing, slow.value.value) == ("broken", pytest.approx(0.0))
    assert slow.limit == pytest.approx(9.0)


def test_goodput_relative_to_the_capacity_that_was_measured() -> None:
    asked = with_objectives(Objective("goodput", 0.8, relative_to_capacity=True))
    measures = measured(history(asked))
    (kept,) = measures.results("resilient")
    assert (kept.standing, kept.limit, kept.value.value) == ("kept", pytest.approx(9.6), pytest.approx(10.0))
    # The control arm is not offered what a burst adds: it is no yardstick and no failure.
    assert measures.results("control")[0].standing == "reference"
    assert status(claims.control_healthy, history(asked)) == "pass"
    unknown = [record for record in history(asked) if not isinstance(record, CalibrationRecord)]
    assert measured(unknown).results("resilient")[0].standing == "unknown"


# --- the course of an arm ----------------------------------------------------------------------------------

STORM = with_objectives(
    Objective("time_to_recover", 5.0),
    Objective("goodput", 0.9, relative_to_control=True, counted="after_revert", from_s=5.0),
)


def test_the_time_to_recover_is_the_first_of_three_good_seconds_after_the_trigger() -> None:
    for end_s, expected in (
        (10.0, 0.0),
        (12.0, 2.0),
        (12.35, 3.0),
        (17.0, 7.0),
        (17.5, math.inf),
        (20.0, math.inf),
    ):
        measures = measured(history(STORM, retry_only=until(end_s)))
        assert measures.results("retry_only")[0].value.value == expected, end_s


def test_a_good_second_between_bad_ones_is_no_recovery() -> None:
    def flaps(offset_s: float, name: str) -> str:
        return "failed" if FAULT_S <= offset_s < 15 and not 12 <= offset_s < 13 else "ok"

    assert measured(history(STORM, retry_only=flaps)).results("retry_only")[0].value.value == 5.0


def test_one_call_of_ten_may_be_missing_in_a_good_second() -> None:
    def nearly(offset_s: float, name: str) -> str:
        return "failed" if offset_s >= FAULT_S and int(offset_s * 10) % 10 == 3 else "ok"

    assert measured(history(STORM, resilient=nearly)).results("resilient")[0].value.value == 0.0


def test_a_storm_has_teeth_in_the_arm_that_retries_and_the_policies_work() -> None:
    records = history(STORM, retry_only=until(20), resilient=until(11))
    (teeth,) = found(claims.fault_has_teeth, records)
    assert teeth.status == "pass"
    assert "with the profile 'retry-only'" in teeth.summary
    assert status(claims.policies_work, records) == "pass"
    assert status(claims.control_healthy, records) == "pass"
    (result, _) = measured(records).results("resilient")
    assert (result.value.value, result.certain) == (1.0, True)
    assert measured(records).results("control")[0].standing == "reference"


def test_a_storm_that_blows_over_by_itself_has_no_teeth() -> None:
    assert status(claims.fault_has_teeth, history(STORM, retry_only=until(11))) == "fail"


def test_recovery_without_a_control_arm_or_a_revert_is_unknown() -> None:
    alone = [record for record in history(STORM) if record.arm != "control"]
    assert measured(alone).results("resilient")[0].standing == "unknown"
    held = [r for r in history(STORM) if not (isinstance(r, FaultRecord) and r.step == "reverted")]
    assert measured(held).results("resilient")[0].standing == "unknown"


def test_the_interval_of_a_recovery_comes_from_the_arrivals_within_each_second() -> None:
    def unsure(offset_s: float, name: str) -> str:
        return "failed" if 10 <= offset_s < 14 and int(offset_s * 10) % 10 in (3, 7) else "ok"

    estimate = measured(history(STORM, resilient=unsure)).results("resilient")[0].value
    assert estimate.value == 4.0
    assert estimate.low is not None
    assert estimate.low < 4.0
    assert estimate == measured(history(STORM, resilient=unsure)).results("resilient")[0].value


def test_of_two_courses_without_draws_only_the_value_is_compared() -> None:
    a = course.Course(slo.Estimate(4.0, None, None, 1, "s"))
    assert course.compare(a, a, slo.difference) == slo.Estimate(0.0, None, None, 1, "s")


def detected(arm: str, start_at: float, after_s: float) -> GatewayEventRecord:
    return GatewayEventRecord(arm, "ejected", start_at + FAULT_S + after_s, {"replica": "replica-0.a"})


def test_the_time_to_detect_is_that_of_the_first_ejection_of_the_target() -> None:
    asked = with_objectives(Objective("time_to_detect", 2.5))
    records = [*history(asked), detected("resilient", 3000.0, 1.5), detected("resilient", 3000.0, 4.0)]
    by_arm = {result.arm: result for result in measured(records).objectives}
    assert (by_arm["resilient"].standing, by_arm["resilient"].value.value) == ("kept", pytest.approx(1.5))
    assert (by_arm["retry_only"].standing, by_arm["retry_only"].value.value) == ("broken", math.inf)
    assert by_arm["control"].standing == "reference"
    assert status(evidence.objectives_measured, records) == "pass"


# --- checks ------------------------------------------------------------------------------------------------


def altered(records: list[Record], arm: str, n: int, **values: object) -> list[Record]:
    return [
        replace(r, **values) if isinstance(r, CallRecord) and r.arm == arm and r.n == n else r  # type: ignore[arg-type]
        for r in records
    ]


@pytest.mark.parametrize("values", [{"text_sha": "other"}, {"output_tokens": 2}, {"finish_reason": "stop"}])
def test_an_answer_that_differs_from_the_control_arms_was_altered(values: dict[str, object]) -> None:
    records = history()
    assert status(streams.streams_unaltered, records) == "pass"
    (check,) = found(streams.streams_unaltered, altered(records, "resilient", 60, **values), "resilient")
    assert check.status == "fail"
    assert "call 60" in check.summary
    resumed = [
        *altered(records, "resilient", 60, **values),
        GatewayEventRecord("resilient", "resumed", 1.0, {"request_id": "resilient-60"}),
    ]
    assert "which was resumed" in found(streams.streams_unaltered, resumed, "resilient")[0].summary


def test_what_was_answered_with_less_on_purpose_may_differ() -> None:
    lesser = altered(history(), "resilient", 60, text_sha="other", rung="short_output", outcome="degraded")
    assert status(streams.streams_unaltered, lesser) == "pass"
    full = altered(history(), "resilient", 60, text_sha="other", rung="full")
    assert status(streams.streams_unaltered, full) == "fail"


def test_texts_that_cannot_be_compared_are_inconclusive() -> None:
    alone = [record for record in history() if record.arm != "control"]
    assert status(streams.streams_unaltered, alone) == "inconclusive"
    nothing = history(resilient=lambda offset_s, name: "failed")
    assert status(streams.streams_unaltered, nothing, "resilient") == "inconclusive"


def test_a_resumed_stream_that_is_whole_is_told() -> None:
    records = [*history(), GatewayEventRecord("resilient", "resumed", 1.0, {"request_id": "resilient-60"})]
    assert "1 of them were resumed" in found(streams.streams_unaltered, records, "resilient")[0].summary


def test_a_fault_on_every_link_needs_proof_for_each() -> None:
    from chaos.checks import faults

    records = history()
    assert status(faults.fault_injected, records) == "pass"
    assert status(faults.fault_reverted, records) == "pass"

    def lacking(step: str) -> list[Record]:
        return [
            r
            for r in records
            if not (isinstance(r, FaultRecord) and r.step == step and r.target.startswith("replica-1"))
        ]

    (check, *_) = found(faults.fault_injected, lacking("verified"), "resilient")
    assert (check.status, "replica-1" in check.summary) == ("inconclusive", True)
    assert status(faults.fault_injected, lacking("injected"), "resilient") == "inconclusive"
    assert status(faults.fault_reverted, lacking("reverted"), "resilient") == "fail"


def test_calls_of_a_burst_are_the_same_in_all_arms_with_it_and_in_no_other() -> None:
    extra = [
        replace(call(arm, 200, start_at, 6.0, "bulk", "ok"), surge=True)
        for arm, start_at in (("retry_only", 2000.0), ("resilient", 3000.0))
    ]
    assert status(evidence.same_arrivals, [*history(), *extra]) == "pass"
    other = [extra[0], replace(extra[1], prompt_sha="other")]
    assert status(evidence.same_arrivals, [*history(), *other]) == "fail"
    stray = replace(call("control", 200, 1000.0, 6.0, "bulk", "ok"), surge=True)
    (check,) = found(evidence.same_arrivals, [*history(), *extra, stray])
    assert (check.status, "no fault" in check.summary) == ("fail", True)


def sampled(arm: str, start_at: float, *values: float | None) -> list[Record]:
    """One sample a second from the arm's start."""
    return [SignalRecord(arm, start_at + at, preemptions=value) for at, value in enumerate(values)]


def test_the_fault_must_have_hurt_in_the_way_that_the_scenario_is_about() -> None:
    asked = replace(EXPERIMENT, signs=(Sign("preemptions", 3.0),))
    risen = [4.0] * 6 + [6.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    seen = [*history(asked), *sampled("retry_only", 2000.0, *risen)]
    (check,) = found(signs.path_taken, seen)
    assert (check.status, check.detail["rise"]) == ("pass", 5.0)
    flat = [
        *history(asked),
        *sampled("retry_only", 2000.0, *[4.0] * 12),
        *sampled("resilient", 3000.0, *risen),
    ]
    (check,) = found(signs.path_taken, flat)
    assert (check.status, "did not hurt in the way" in check.summary) == ("inconclusive", True)
    later = [*history(asked), *sampled("retry_only", 2000.0, *[4.0] * 22, 20.0)]
    assert status(signs.path_taken, later) == "inconclusive"
    assert status(signs.path_taken, history(asked)) == "inconclusive"
    assert (
        status(signs.path_taken, [*history(asked), *sampled("retry_only", 2000.0, *[None] * 12)])
        == "inconclusive"
    )
    assert found(signs.path_taken, history()) == []
    with pytest.raises(UnknownName, match="did you mean 'preemptions'"):
        Sign("preemption", 1.0)
