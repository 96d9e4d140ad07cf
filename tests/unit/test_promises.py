"""What is never lost, doubled or leaked: a history that keeps the promise, one that breaks it, one that cannot tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from chaos.accounts import LEDGER_READ, recorded_requests
from chaos.checks import promises, run
from chaos.checks.check import Checker
from chaos.evidence import sort
from chaos.experiment import RESILIENT, Arm, CallClass, Experiment, FaultPlan, Load
from chaos.history import (
    CallRecord,
    CheckRecord,
    EffectRecord,
    FaultRecord,
    HistoryWriter,
    JobRecord,
    Record,
    read,
)
from chaos.measures import measure
from chaos.slis import STATISTICS

ARM = "resilient"
TWO_TENANTS = Experiment(
    name="promises",
    question="?",
    load=Load(share=0.5, classes=(CallClass("c", 1.0, (8, 8), (4, 4), api_key="web"),)),
    faults=(FaultPlan("noop", "client"),),
    objectives=(),
    counted="hold_window",
    minimum_counted=1,
    arms=(RESILIENT, Arm("new_keys", "resilient", fault=True, clients="new_keys")),
    keys={"web": "acme/web", "leaver": "acme/leaver", "other": "globex/web"},
)


def call(n: int, **says: Any) -> CallRecord:
    """One that was sent at second ``n`` and answered half a second later."""
    plain = CallRecord(
        arm=ARM,
        n=n,
        request_id=f"r{n}",
        offset_s=float(n),
        scheduled_at=float(n),
        sent_at=float(n),
        ended_at=n + 0.5,
        stream=False,
        prompt_sha="p",
        prompt_tokens=8,
        max_tokens=4,
        outcome="ok",
        status=200,
    )
    return replace(plain, **says)


def effect(seq: int, sender: str, arm: str = ARM) -> EffectRecord:
    return EffectRecord(arm, seq, f"key-{seq}", sender, 1.0)


def ledger(ok: bool | None = True, arm: str = ARM) -> CheckRecord:
    return CheckRecord(arm, LEDGER_READ, ok, 99.0)


def told(checker: Checker, *records: Record) -> list[tuple[str, str]]:
    return [
        (one.status, one.summary) for one in run(checker, measure(sort(records, TWO_TENANTS), resamples=5))
    ]


def statuses(checker: Checker, *records: Record) -> list[str]:
    return [status for status, _ in told(checker, *records)]


def test_an_effect_that_was_told_and_happened_once_keeps_the_promise() -> None:
    one = call(0, effect="s0")
    assert statuses(promises.effects_truthful, one, effect(1, "s0"), effect(2, "probe"), ledger()) == ["pass"]


def test_an_effect_that_happened_twice_was_only_claimed_or_was_refused_breaks_it() -> None:
    twice = told(promises.effects_truthful, call(0, effect="s0"), effect(1, "s0"), effect(2, "s0"), ledger())
    assert twice[0][0] == "fail"
    assert "happened 2 times" in twice[0][1]
    assert statuses(promises.effects_truthful, call(0, effect="s0"), ledger()) == ["fail"]
    refused = call(0, effect="s0", outcome="failed", status=422)
    assert statuses(promises.effects_truthful, refused, effect(1, "s0"), ledger()) == ["fail"]
    lost_first = replace(refused, tries=[{"status": 0}, {"status": 422}])
    assert statuses(promises.effects_truthful, lost_first, effect(1, "s0"), ledger()) == ["pass"]


def test_clients_who_ask_anew_get_a_second_effect_and_no_false_word() -> None:
    one = call(0, effect="s0", arm="new_keys")
    doubled = (effect(1, "s0", "new_keys"), effect(2, "s0", "new_keys"), ledger(arm="new_keys"))
    assert statuses(promises.effects_truthful, one, *doubled) == ["pass"]
    (arm,) = sort((one, *doubled), TWO_TENANTS).arms
    assert STATISTICS["effects_once"].of(arm.calls) == 0.0


def test_a_ledger_that_was_not_read_tells_nothing() -> None:
    assert statuses(promises.effects_truthful, call(0, effect="s0"), ledger(None)) == ["inconclusive"]
    (arm,) = sort((call(0, effect="s0"), ledger(None)), TWO_TENANTS).arms
    assert STATISTICS["effects_once"].of(arm.calls) is None


def job(n: int, state: str = "done", sha: str = "") -> JobRecord:
    return JobRecord(ARM, n, f"/v1/jobs/{n}", state, 50.0, "", sha)


def test_every_job_ends_in_one_way() -> None:
    accepted = call(0, job="/v1/jobs/0", outcome="deferred_done", text_sha="t", status=202)
    assert statuses(promises.jobs_accounted, accepted, job(0, sha="t")) == ["pass"]
    assert statuses(promises.jobs_accounted, accepted, job(0, "failed")) == ["pass"]
    assert statuses(promises.jobs_accounted, accepted, job(0, "missing")) == ["fail"]
    assert statuses(promises.jobs_accounted, accepted, job(0, "running")) == ["fail"]
    assert statuses(promises.jobs_accounted, accepted, job(0, "unknown")) == ["inconclusive"]
    assert statuses(promises.jobs_accounted, accepted) == ["inconclusive"]
    assert statuses(promises.jobs_accounted, accepted, job(0, sha="another")) == ["fail"]
    twin = call(1, job="/v1/jobs/0", outcome="deferred_done", status=202)
    assert statuses(promises.jobs_accounted, accepted, twin, job(0, sha="t"), job(1)) == ["fail"]


def fault(kind: str, target: str, step: str, at: float) -> FaultRecord:
    return FaultRecord(ARM, kind, target, step, at, {"took_s": 0.1} if step == "injected" else {})


def test_an_answer_from_the_cache_was_computed_for_its_own_tenant() -> None:
    computed = call(0, api_key="web", cache="miss")
    check = promises.answers_of_the_tenant
    assert statuses(check, computed, call(1, api_key="leaver", cache="hit")) == ["pass"]
    assert statuses(check, computed, call(1, api_key="other", cache="hit")) == ["fail"]
    assert statuses(check, computed, call(1, api_key="web", cache="hit", prompt_sha="q")) == ["fail"]
    assert statuses(check, call(0)) == []


def test_an_answer_of_another_revision_is_found_out() -> None:
    computed = call(0, api_key="web", cache="miss")
    changed = fault("new_revision", "gateway", "injected", 2.0)
    back = fault("new_revision", "gateway", "reverted", 6.0)
    check = promises.answers_of_the_tenant
    old = call(3, api_key="web", cache="hit")
    assert statuses(check, computed, changed, back, old) == ["fail"]
    anew, later = call(3, api_key="web", cache="miss"), replace(old, n=4, sent_at=4.0, ended_at=4.5)
    assert statuses(check, computed, changed, anew, later) == ["pass"]
    assert statuses(check, computed, changed, back, replace(old, n=7, sent_at=7.0, ended_at=7.5)) == ["pass"]


def test_a_revoked_key_gets_nothing_until_it_holds_again() -> None:
    revoked = fault("revoke_key", "leaver", "injected", 2.0)
    back = fault("revoke_key", "leaver", "reverted", 6.0)
    check = promises.nothing_after_revocation
    refused = call(3, api_key="leaver", outcome="failed", status=401)
    assert statuses(check, call(1, api_key="leaver"), revoked, back, refused) == ["pass"]
    assert statuses(check, revoked, back, refused, call(4, api_key="leaver", cache="hit")) == ["fail"]
    assert statuses(check, revoked, back, call(4, api_key="web")) == ["inconclusive"]
    assert statuses(check, revoked, back, refused, call(8, api_key="leaver")) == ["pass"]


def test_every_answer_but_one_that_no_record_could_be_written_of_must_stand_in_the_audit() -> None:
    tries = [
        {"request_id": "r0", "status": 0, "error_type": "connection"},
        {"request_id": "r0.2", "status": 503, "error_type": "unavailable"},
        {"request_id": "r0.3", "status": 503, "error_type": "overloaded"},
        {"request_id": "r0.4", "status": 200, "error_type": ""},
    ]
    plain = call(1, outcome="refused", status=401, error_type="authentication_error")
    assert recorded_requests([call(0, tries=tries), plain]) == {"r0.3", "r0.4", "r1"}


def test_what_is_new_in_a_history_comes_back_from_the_file(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path / "h.jsonl")
    wrote = [call(0, tries=[{"status": 0}], job="/v1/jobs/0"), effect(1, "s0"), job(0)]
    for record in wrote:
        history.write(record)
    history.close()
    assert list(read(tmp_path / "h.jsonl")) == wrote
