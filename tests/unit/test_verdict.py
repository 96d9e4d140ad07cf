"""Each checker: a history that passes, one that fails, one that shows nothing. And how they add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from chaos import checks
from chaos.checks import claims, evidence, faults, streams, surroundings
from chaos.checks.check import Check, Checker, worst
from chaos.evidence import sort
from chaos.experiment import Objective
from chaos.history import (
    CalibrationRecord,
    CallRecord,
    CheckRecord,
    EndRecord,
    FaultRecord,
    GatewayEventRecord,
    Record,
    RunRecord,
)
from chaos.machine import MACHINE_ALONE, OTHERS_SHARE
from chaos.measures import measure
from chaos.verdict import EXIT_CODES, judge
from tests.fakes.history import WORKER_LOSS, records

RESAMPLES = 200
Records = list[Record]


@pytest.fixture(scope="module")
def good() -> Records:
    return records()


def found(checker: Checker, history: Records, arm: str | None = None) -> list[Check]:
    """Run one checker on a history; only the checks of ``arm`` when given."""
    resamples = RESAMPLES if checker.__module__ == claims.__name__ else 5  # only claims look at intervals
    made = checks.run(checker, measure(sort(history), resamples))
    return [check for check in made if arm is None or check.arm == arm]


def status(checker: Checker, history: Records, arm: str | None = None) -> str:
    return worst(check.status for check in found(checker, history, arm))


def without(history: Records, drop: Callable[[Any], bool]) -> Records:
    return [record for record in history if not drop(record)]


def changed(history: Records, pick: Callable[[Any], bool], **values: Any) -> Records:
    """Replace fields of the picked records; there must be some."""
    assert any(pick(record) for record in history)
    return [replace(record, **values) if pick(record) else record for record in history]


def asked(history: Records, **values: Any) -> Records:
    """Let the history's own experiment say something else."""
    experiment = asdict(replace(WORKER_LOSS, **values))
    return changed(history, lambda r: isinstance(r, RunRecord), experiment=experiment)


def calls(arm: str, *numbers: int) -> Callable[[Any], bool]:
    return lambda r: isinstance(r, CallRecord) and r.arm == arm and (not numbers or r.n in numbers)


def step(name: str, arm: str = "") -> Callable[[Any], bool]:
    return lambda r: isinstance(r, FaultRecord) and r.step == name and (not arm or r.arm == arm)


def is_check(name: str) -> Callable[[Any], bool]:
    return lambda r: isinstance(r, CheckRecord) and r.name == name


def without_arm(history: Records, arm: str) -> Records:
    return without(history, lambda r: r.arm == arm)


# --- the whole ---------------------------------------------------------------------------------------------


def test_a_good_history_passes_every_check(good: Records) -> None:
    verdict = judge(good, resamples=RESAMPLES)
    assert [c for c in verdict.checks if c.status != "pass"] == []
    assert (verdict.status, verdict.exit_code, verdict.deciding) == ("pass", 0, ())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_give_the_same_verdicts(seed: int) -> None:
    assert judge(records(seed), resamples=RESAMPLES).status == "pass"
    assert judge(records(seed, without=("retry",)), resamples=RESAMPLES).status == "fail"


def test_without_retry_the_calls_that_awaited_are_lost_and_the_run_fails() -> None:
    verdict = judge(records(without=("retry",)), resamples=RESAMPLES)
    assert (verdict.status, verdict.exit_code) == ("fail", 1)
    assert [c.name for c in verdict.deciding] == ["policies_work: success_rate >= 1"]


def test_the_same_history_gives_the_same_verdict_to_the_last_digit(good: Records) -> None:
    assert judge(good, resamples=RESAMPLES) == judge(good, resamples=RESAMPLES)


def test_an_old_history_can_be_judged_by_new_objectives(good: Records) -> None:
    harder = replace(WORKER_LOSS, objectives=(Objective("ttft_p95", 0.01),))
    verdict = judge(good, harder, RESAMPLES)
    assert verdict.status == "inconclusive"
    assert {c.name for c in verdict.deciding} >= {"control_healthy"}


def test_fail_beats_inconclusive_beats_pass_and_nothing_is_inconclusive() -> None:
    assert worst(["pass", "inconclusive", "fail"]) == "fail"
    assert worst(["pass", "inconclusive", "pass"]) == "inconclusive"
    assert worst(["pass"]) == "pass"
    assert worst([]) == "inconclusive"
    assert dict(EXIT_CODES) == {"pass": 0, "fail": 1, "inconclusive": 2}


def test_a_crashed_checker_is_inconclusive_and_says_so(good: Records) -> None:
    def broken(_: Any) -> list[Check]:
        raise ZeroDivisionError("no calls")

    (check,) = checks.run(broken, measure(sort(good), RESAMPLES))
    assert (check.status, check.crashed, check.name) == ("inconclusive", True, "broken")
    assert "ZeroDivisionError: no calls" in check.summary


def test_a_crash_never_lets_a_run_pass(good: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> list[Check]:
        raise KeyError("x")

    monkeypatch.setattr(checks, "CHECKERS", [*checks.CHECKERS, broken])
    assert judge(good, resamples=RESAMPLES).status == "inconclusive"


def test_an_empty_history_is_inconclusive() -> None:
    verdict = judge([])
    assert (verdict.status, verdict.exit_code) == ("inconclusive", 2)
    assert "run record" in verdict.checks[0].summary


def test_a_run_record_without_an_experiment_is_inconclusive(good: Records) -> None:
    broken = changed(good, lambda r: isinstance(r, RunRecord), experiment={"name": "x"})
    assert judge(broken).status == "inconclusive"


# --- the claims --------------------------------------------------------------------------------------------


def test_fault_has_teeth(good: Records) -> None:
    (check,) = found(claims.fault_has_teeth, good)
    assert check.status == "pass"
    assert check.detail["success_rate"]["low"] > 0


def test_a_fault_that_breaks_nothing_has_no_teeth(good: Records) -> None:
    kept = {c.n: c for c in good if isinstance(c, CallRecord) and c.arm == "control"}
    harmless = [
        replace(
            kept[r.n],
            arm="naive",
            request_id=r.request_id,
            scheduled_at=r.scheduled_at,
            first_token_at=(t := kept[r.n].first_token_at) and t - kept[r.n].scheduled_at + r.scheduled_at,
            ended_at=kept[r.n].ended_at - kept[r.n].scheduled_at + r.scheduled_at,
        )
        if isinstance(r, CallRecord) and r.arm == "naive"
        else r
        for r in good
    ]
    (check,) = found(claims.fault_has_teeth, harmless)
    assert check.status == "fail"
    assert "no teeth" in check.summary
    # The same without proof of the fault says nothing about its teeth.
    unproven = without(harmless, step("verified", "naive"))
    assert status(claims.fault_has_teeth, unproven) == "inconclusive"


def test_a_difference_that_is_not_significant_shows_no_teeth(good: Records) -> None:
    evidence_ = sort(good)
    naive = next(m for m in measure(evidence_, 10).arms if m.evidence.name == "naive")
    lost = [c.n for c in naive.counted if c.outcome != "ok"]
    assert len(lost) > 1
    spared = without(good, lambda r: False)
    twins = {c.n: c for c in good if isinstance(c, CallRecord) and c.arm == "control"}
    for index, record in enumerate(spared):
        if calls("naive", *lost[1:])(record):
            twin = twins[record.n]
            shift = record.scheduled_at - twin.scheduled_at
            first = twin.first_token_at
            spared[index] = replace(
                twin,
                arm="naive",
                request_id=record.request_id,
                scheduled_at=record.scheduled_at,
                sent_at=record.sent_at,
                ended_at=twin.ended_at + shift,
                first_token_at=None if first is None else first + shift,
                token_at=[at + shift for at in twin.token_at],
            )
    (check,) = found(claims.fault_has_teeth, spared)
    assert check.status == "inconclusive"
    assert "not significant" in check.summary


@pytest.mark.parametrize(
    ("arm", "checker"),
    [
        ("naive", claims.fault_has_teeth),
        ("resilient", claims.fault_has_teeth),
        ("resilient", claims.policies_work),
        ("control", claims.control_healthy),
        ("control", claims.policies_work),
        ("resilient", streams.visible_failures),
    ],
)
def test_what_needs_an_arm_that_was_not_run_is_inconclusive(
    good: Records, arm: str, checker: Checker
) -> None:
    assert status(checker, without_arm(good, arm)) == "inconclusive"


def test_policies_work_gives_one_check_an_objective(good: Records) -> None:
    made = found(claims.policies_work, good)
    assert [check.name for check in made] == [
        "policies_work: success_rate >= 1",
        "policies_work: ttft_p95 <= 3 x control",
    ]
    assert {check.status for check in made} == {"pass"}


def test_a_broken_objective_of_the_resilient_arm_fails(good: Records) -> None:
    slow = asked(good, objectives=(Objective("ttft_p95", 1.0, relative_to_control=True),))
    assert status(claims.policies_work, slow) == "fail"


def test_too_few_calls_prove_an_objective_broken_only_with_the_whole_interval(good: Records) -> None:
    ratio = measure(sort(good), RESAMPLES).results("resilient")[1].ratio
    assert ratio is not None
    assert ratio.value is not None
    assert ratio.low is not None
    within = Objective("ttft_p95", (ratio.low + ratio.value) / 2, relative_to_control=True)
    beyond = Objective("ttft_p95", ratio.low / 2, relative_to_control=True)
    for objective, minimum, expected in (
        (within, 10, "fail"),
        (within, 1000, "inconclusive"),
        (beyond, 1000, "fail"),
    ):
        history = asked(good, objectives=(objective,), minimum_counted=minimum)
        assert status(claims.policies_work, history) == expected, (objective, minimum)


@pytest.mark.parametrize(("share", "expected"), [(0.1, "fail"), (0.6, "inconclusive")])
def test_what_breaks_while_others_have_the_machine_is_not_put_down_to_the_policies(
    good: Records, share: float, expected: str
) -> None:
    slow = asked(good, objectives=(Objective("ttft_p95", 1.0, relative_to_control=True),))
    for arm, seen in (("control", 0.9), ("resilient", share)):
        slow = [*slow, CheckRecord(arm, MACHINE_ALONE, True, 1.0, {OTHERS_SHARE: seen})]
    slow = [
        *(r for r in slow if not isinstance(r, EndRecord)),
        *(r for r in slow if isinstance(r, EndRecord)),
    ]
    assert status(claims.policies_work, slow) == expected


def test_an_objective_that_the_control_arm_breaks_too_says_nothing_about_the_policies(good: Records) -> None:
    hopeless = asked(good, objectives=(Objective("e2e_p95", 0.001),))
    assert status(claims.policies_work, hopeless) == "inconclusive"
    assert status(claims.control_healthy, hopeless) == "inconclusive"


def test_control_healthy(good: Records) -> None:
    assert status(claims.control_healthy, good) == "pass"
    sick = changed(good, calls("control", 200), outcome="failed", error_type="cut")
    assert status(claims.control_healthy, sick) == "inconclusive"
    # A tool that never answered made every call of every arm degraded, and the run passed.
    dim = changed(good, lambda r: isinstance(r, CallRecord) and r.arm == "control", outcome="degraded")
    assert status(claims.control_healthy, dim) == "inconclusive"


def test_an_allowance_is_added_to_the_multiple(good: Records) -> None:
    strict = Objective("ttft_p95", 1.0, relative_to_control=True)
    assert status(claims.policies_work, asked(good, objectives=(strict,))) == "fail"
    allowed = replace(strict, allowance_s=0.5)
    assert status(claims.policies_work, asked(good, objectives=(allowed,))) == "pass"
    results = measure(sort(asked(good, objectives=(allowed,))), RESAMPLES).results("resilient")
    assert results[0].certain


# --- whether the numbers may be believed -------------------------------------------------------------------


def test_history_complete(good: Records) -> None:
    assert status(evidence.history_complete, good) == "pass"
    cut = without(good, lambda r: isinstance(r, EndRecord))
    assert status(evidence.history_complete, cut) == "inconclusive"
    aborted = changed(good, lambda r: isinstance(r, EndRecord), reason="interrupted")
    assert status(evidence.history_complete, aborted) == "inconclusive"


def test_same_arrivals(good: Records) -> None:
    assert status(evidence.same_arrivals, good) == "pass"
    for values in ({"offset_s": 3.21}, {"prompt_sha": "other"}, {"max_tokens": 99}, {"stream": None}):
        other = changed(good, calls("naive", 20), **values)
        assert status(evidence.same_arrivals, other) == "fail", values
    assert status(evidence.same_arrivals, without(good, calls("naive", 20))) == "fail"
    doubled = [*good, next(r for r in good if calls("naive", 20)(r))]
    assert status(evidence.same_arrivals, doubled) == "fail"
    alone = without_arm(without_arm(good, "naive"), "control")
    assert status(evidence.same_arrivals, alone) == "inconclusive"


def test_an_arm_that_ended_sooner_may_have_fewer_arrivals_at_its_end(good: Records) -> None:
    last = max(r.n for r in good if isinstance(r, CallRecord))
    assert status(evidence.same_arrivals, without(good, calls("naive", last, last - 1))) == "pass"


def test_minimum_counted(good: Records) -> None:
    assert status(evidence.minimum_counted, good) == "pass"
    assert status(evidence.minimum_counted, asked(good, minimum_counted=1000)) == "inconclusive"
    untold = without(good, step("injected", "naive"))
    assert status(evidence.minimum_counted, untold, "naive") == "inconclusive"
    assert status(evidence.minimum_counted, untold, "control") == "pass"


def test_a_missing_metric_is_inconclusive_and_never_zero(good: Records) -> None:
    assert status(evidence.objectives_measured, good) == "pass"
    mute = changed(good, calls("resilient"), stream=False, first_token_at=None, token_at=[])
    (check,) = found(evidence.objectives_measured, mute, "resilient")
    assert check.status == "inconclusive"
    assert "ttft_p95" in check.summary
    assert status(claims.policies_work, mute) == "inconclusive"


def test_load_on_time(good: Records) -> None:
    assert status(evidence.load_on_time, good) == "pass"
    late = [replace(r, sent_at=r.sent_at + 2) if calls("control")(r) else r for r in good]
    assert status(evidence.load_on_time, late, "control") == "inconclusive"
    assert status(evidence.load_on_time, late, "naive") == "pass"


def test_steady_state(good: Records) -> None:
    assert status(evidence.steady_state, good) == "pass"
    early = next(r.n for r in good if isinstance(r, CallRecord) and 4 < r.offset_s < 5)
    sick = changed(good, calls("naive", early), outcome="failed")
    assert status(evidence.steady_state, sick, "naive") == "inconclusive"
    assert status(evidence.steady_state, without(good, calls("naive")), "naive") == "inconclusive"


def test_regression_calls_that_a_slow_kill_breaks_are_not_held_against_the_steady_state(
    good: Records,
) -> None:
    # A container engine took 0.94 s to kill, and calls broke before "injected" was written.
    slow = [
        replace(r, at=r.at + 0.9, detail={**r.detail, "took_s": 0.94}) if step("injected")(r) else r
        for r in good
    ]
    assert status(evidence.steady_state, slow, "naive") == "pass"


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(2 / 3, "pass"), (0.75, "pass"), (0.60, "pass"), (0.80, "inconclusive"), (0.5, "inconclusive")],
)
def test_calibration_within_fifteen_per_cent(ratio: float, expected: str) -> None:
    (check,) = found(evidence.calibration, records(capacity_ratio=ratio))
    assert check.status == expected
    if expected == "inconclusive":
        assert "replicas share the CPU" in check.summary


def test_calibration_that_is_missing_or_empty_is_inconclusive_and_is_left_out_where_not_asked_for(
    good: Records,
) -> None:
    none = without(good, lambda r: isinstance(r, CalibrationRecord))
    assert status(evidence.calibration, none) == "inconclusive"
    idle = changed(good, lambda r: isinstance(r, CalibrationRecord), calls_per_s=0.0)
    assert status(evidence.calibration, idle) == "inconclusive"
    assert found(evidence.calibration, asked(none, calibrate_loss=False)) == []


# --- the fault's life --------------------------------------------------------------------------------------


def test_fault_injected(good: Records) -> None:
    assert status(faults.fault_injected, good) == "pass"
    assert status(faults.fault_injected, without(good, step("injected"))) == "inconclusive"
    assert status(faults.fault_injected, without(good, step("verified"))) == "inconclusive"
    doubted = changed(good, step("verified", "naive"), detail={"ok": False})
    assert status(faults.fault_injected, doubted) == "inconclusive"
    stray = [*good, FaultRecord("control", "kill_replica", "replica-0.x", "injected", 1.0)]
    assert status(faults.fault_injected, stray, "control") == "fail"


def test_fault_reverted(good: Records) -> None:
    assert status(faults.fault_reverted, good) == "pass"
    stuck = without(good, step("reverted", "naive"))
    assert status(faults.fault_reverted, stuck, "naive") == "fail"
    cut = without(stuck, lambda r: isinstance(r, EndRecord))
    assert status(faults.fault_reverted, cut, "naive") == "inconclusive"
    refused = changed(good, step("reverted", "naive"), detail={"ok": False})
    assert status(faults.fault_reverted, refused, "naive") == "fail"


# --- what holds in every arm -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flaw",
    [
        {"done": False},
        {"finish_reason": ""},
        {"finish_reason": "abort"},
        {"output_tokens": 1},
        {"output_tokens": 0},
        {"output_tokens": 999},
        {"first_token_at": None},
        {"token_at": [1.0 + i for i in range(40)]},
    ],
)
def test_a_call_that_is_taken_for_answered_but_is_not_whole_fails(
    good: Records, flaw: dict[str, Any]
) -> None:
    number = next(r.n for r in good if calls("control")(r) and isinstance(r, CallRecord) and r.stream)
    assert (
        status(streams.stream_integrity, changed(good, calls("control", number), **flaw), "control") == "fail"
    )


def test_stream_integrity(good: Records) -> None:
    assert status(streams.stream_integrity, good) == "pass"
    nothing = changed(good, calls("naive"), outcome="failed")
    assert status(streams.stream_integrity, nothing, "naive") == "inconclusive"


def test_a_stream_that_ends_early_by_itself_is_whole(good: Records) -> None:
    number = next(r.n for r in good if calls("control")(r) and isinstance(r, CallRecord) and r.stream)
    short = changed(
        good, calls("control", number), finish_reason="stop", output_tokens=2, token_at=[1.0, 2.0]
    )
    assert status(streams.stream_integrity, short, "control") == "pass"


def test_visible_failures(good: Records) -> None:
    (check,) = found(streams.visible_failures, good)
    assert check.status == "pass"
    assert "typed error event" in check.summary
    assert status(streams.visible_failures, records(typed_cuts=False)) == "fail"
    assert status(streams.visible_failures, without(good, calls("resilient"))) == "inconclusive"


@pytest.mark.parametrize("name", ["replica_returned", "in_flight_zero", "no_toxics", "no_leftovers"])
def test_what_the_runner_found_decides(good: Records, name: str) -> None:
    checker = surroundings.found_by_the_runner
    assert status(checker, good) == "pass"
    assert status(checker, changed(good, is_check(name), ok=False)) == "fail"
    assert status(checker, changed(good, is_check(name), ok=None)) == "inconclusive"
    assert status(checker, without(good, is_check(name))) == "inconclusive"


def test_what_nobody_planned_but_the_runner_found_is_judged_too(good: Records) -> None:
    checker = surroundings.found_by_the_runner
    extra = CheckRecord("naive", "fault_condition", None, 1.0, {"bound_s": 5})
    assert status(checker, [*good, extra], "naive") == "inconclusive"
    assert status(checker, [*good, replace(extra, ok=False)], "naive") == "fail"
    assert status(checker, [*good, replace(extra, ok=True)], "naive") == "pass"


def test_leftovers_may_be_looked_for_after_each_arm_but_then_after_every_one(good: Records) -> None:
    checker = surroundings.found_by_the_runner
    base = without(good, is_check("no_leftovers"))
    each = [CheckRecord(arm, "no_leftovers", True, 1.0) for arm in ("control", "naive", "resilient")]
    assert status(checker, [*base, *each]) == "pass"
    assert status(checker, [*base, *each[:2]], "resilient") == "inconclusive"


def test_a_replica_need_not_return_where_none_was_lost(good: Records) -> None:
    slow = asked(
        without(good, is_check("replica_returned")),
        faults=(replace(WORKER_LOSS.faults[0], kind="latency", target="tool"),),
    )
    assert status(surroundings.found_by_the_runner, slow) == "pass"


def test_regression_a_replica_need_not_return_where_the_fault_never_struck(good: Records) -> None:
    waited = without(
        without(good, lambda r: isinstance(r, FaultRecord) and r.arm == "naive" and r.step != "scheduled"),
        lambda r: is_check("replica_returned")(r) and r.arm == "naive",
    )
    assert status(surroundings.found_by_the_runner, waited, "naive") == "pass"
    verdict = judge(waited, resamples=RESAMPLES)
    assert verdict.status == "inconclusive"
    assert verdict.deciding[0].name == "fault_injected", "the cause comes before its consequences"


# --- the numbers -------------------------------------------------------------------------------------------


def test_retry_amplification_counts_attempts_and_the_prompts_sent_again(good: Records) -> None:
    by_arm = {m.evidence.name: m.amplification for m in measure(sort(good), 10).arms}
    naive, resilient = by_arm["naive"], by_arm["resilient"]
    assert naive is not None
    assert resilient is not None
    assert naive.ratio == 1.0
    assert resilient.ratio is not None
    assert resilient.ratio > 1.0
    retried = [
        e
        for e in good
        if isinstance(e, GatewayEventRecord)
        and e.arm == "resilient"
        and e.event == "attempt_started"
        and e.detail["attempt"] > 1
    ]
    assert resilient.attempts - resilient.calls == len(retried)
    assert 120 * len(retried) <= resilient.repeated_prompt_tokens <= 180 * len(retried)


def test_probes_of_the_runner_are_not_counted_as_calls(good: Records) -> None:
    detail = {"request_id": "probe-1", "attempt": 1, "replica": "replica-0.a"}
    more = [*good, GatewayEventRecord("naive", "attempt_started", 1.0, detail)]
    amplified = [m.amplification for m in measure(sort(more), 10).arms]
    assert amplified == [m.amplification for m in measure(sort(good), 10).arms]
