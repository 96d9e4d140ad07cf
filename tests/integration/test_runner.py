"""The whole lifecycle against a cluster in one process: real HTTP, real histories, phases of fractions of a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import history
from chaos.bounds import Bounds
from chaos.calibrate import WITHOUT
from chaos.conduct import FolderTakenError, Request, conduct
from chaos.experiment import CallClass, Experiment, FaultPlan, Load, Objective, Phases
from chaos.faults import BlastRadius
from chaos.history import (
    CalibrationRecord,
    CallRecord,
    CheckRecord,
    EndRecord,
    FaultRecord,
    GatewayEventRecord,
    PhaseRecord,
    Record,
    RunRecord,
    SignalRecord,
)
from chaos.names import UnknownName
from chaos.progress import Silent
from chaos.shared_capacity import SharedCapacity
from chaos.substrate import NotRunningError, SubstrateError
from chaos.undo import UndoLog
from chaos.verdict import judge
from chaos.waiting import until
from cluster.public import claim_run_dir
from tests.fakes.cluster import FakeCluster, FakeSubstrate

BOUNDS = Bounds(settle_s=0.1, window_s=0.25, return_s=5, quiet_s=3, resolve_s=5, fault_limit_s=5, poll_s=0.02)
LOSS = Experiment(
    name="small_loss",
    question="does the runner do its work?",
    load=Load(
        share=0.5, of_replicas_lost=1, prompt_tokens=(8, 12), output_tokens=(6, 10), client_deadline_s=6
    ),
    faults=(FaultPlan("kill_replica", "replica-*", when={"streaming": 2, "awaiting": 1}),),
    objectives=(Objective("success_rate", 1.0),),
    counted="worker_loss_window",
    minimum_counted=5,
    phases=Phases(warm_up_s=0.05, steady_s=0.2, hold_s=0.4, recovery_s=0.8),
    calibrate_loss=True,
)
SLOW = replace(
    LOSS,
    name="small_slow_tool",
    load=replace(LOSS.load, tool=True),
    faults=(FaultPlan("latency", "tool", settings={"latency_s": 0.25}),),
    calibrate_loss=False,
)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster().serving() as running:
        yield running


@pytest.fixture
def substrate(cluster: FakeCluster) -> FakeSubstrate:
    return FakeSubstrate(cluster)


def request(
    experiment: Experiment, tmp_path: Path, name: str = "out", rate_per_s: float | None = 80
) -> Request:
    return Request(experiment, 7, tmp_path / name, False, rate_per_s, tmp_path / "run", BOUNDS)


def only(experiment: Experiment, *arms: str) -> Experiment:
    return replace(experiment, arms=tuple(arm for arm in experiment.arms if arm.name in arms))


def of(kind: type, records: list[Record], arm: str | None = None) -> list:
    return [r for r in records if isinstance(r, kind) and (arm is None or r.arm == arm)]


async def run(
    experiment: Experiment, substrate: FakeSubstrate, tmp_path: Path, name: str = "out"
) -> list[Record]:
    path = await conduct(request(experiment, tmp_path, name), substrate, Silent())
    return list(history.read(path))


async def test_worker_loss_from_ready_to_closed_history(substrate: FakeSubstrate, tmp_path: Path) -> None:
    records = await run(LOSS, substrate, tmp_path)

    assert isinstance(records[0], RunRecord)
    assert isinstance(records[-1], EndRecord)
    assert records[-1].reason == "completed"
    assert [r.replicas for r in of(CalibrationRecord, records)] == [3, 2]
    assert all(r.calls_per_s > 0 for r in of(CalibrationRecord, records))
    for arm in ("control", "naive", "resilient"):
        phases = [r.phase for r in of(PhaseRecord, records, arm)]
        assert phases[:4] == ["warm_up", "steady", "fault", "hold"]
        assert phases[-1] == "end"
        checks = {r.name: r.ok for r in of(CheckRecord, records, arm)}
        assert checks["in_flight_zero"] is True
        assert checks["no_toxics"] is True
        assert checks["no_leftovers"] is True
        assert of(SignalRecord, records, arm)
    for arm in ("naive", "resilient"):
        steps = [r.step for r in of(FaultRecord, records, arm)]
        assert steps == ["scheduled", "condition", "injected", "verified", "reverted", "recovered"]
        injected = next(r for r in of(FaultRecord, records, arm) if r.step == "injected")
        assert len(injected.detail["streaming"]) >= 2
        assert len(injected.detail["awaiting"]) >= 1
        assert {r.name: r.ok for r in of(CheckRecord, records, arm)}["replica_returned"] is True
    assert [r.step for r in of(FaultRecord, records, "control")] == ["scheduled"]
    outcomes = {
        arm: {r.outcome for r in of(CallRecord, records, arm)} for arm in ("control", "naive", "resilient")
    }
    assert outcomes["control"] == {"ok"}
    assert "failed" in outcomes["naive"]


async def test_arms_have_the_same_arrivals_prompts_and_fault_time(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    first = await run(LOSS, substrate, tmp_path, "first")
    second = await run(LOSS, substrate, tmp_path, "second")

    def asked(records: list[Record], arm: str) -> list[tuple]:
        calls = sorted(of(CallRecord, records, arm), key=lambda c: c.n)
        return [(c.n, c.offset_s, c.prompt_sha, c.max_tokens, c.stream) for c in calls]

    def scheduled(records: list[Record], arm: str) -> float:
        return next(r.detail["offset_s"] for r in of(FaultRecord, records, arm) if r.step == "scheduled")

    reference = asked(first, "control")
    assert len(reference) > 20
    for records in (first, second):
        for arm in ("control", "naive", "resilient"):
            assert asked(records, arm) == reference
            assert scheduled(records, arm) == scheduled(first, "control")


async def test_the_gateways_events_of_an_arm_are_in_the_history(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    records = await run(only(SLOW, "control", "resilient"), substrate, tmp_path)
    for arm in ("control", "resilient"):
        started = {
            r.detail["request_id"]
            for r in of(GatewayEventRecord, records, arm)
            if r.event == "attempt_started"
        }
        called = {r.request_id for r in of(CallRecord, records, arm)}
        assert called <= started
        assert not any(other.startswith("calibrate") for other in started)


async def test_each_arm_has_its_profile_and_the_gateway_gets_its_own_back(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    cluster.profile = {"profile": "resilient", "without": ["hedging"]}
    await run(SLOW, substrate, tmp_path)
    assert cluster.profiles_set == [
        {"profile": "resilient", "without": list(WITHOUT)},
        {"profile": "resilient", "without": []},
        {"profile": "naive", "without": []},
        {"profile": "resilient", "without": []},
        {"profile": "resilient", "without": ["hedging"]},
    ]


async def test_slow_tool_is_proven_from_outside_and_degrades_the_resilient_arm(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    records = await run(SLOW, substrate, tmp_path)
    for arm in ("naive", "resilient"):
        verified = next(r for r in of(FaultRecord, records, arm) if r.step == "verified")
        assert verified.detail["during_s"] - verified.detail["before_s"] >= 0.2
    outcomes = {r.outcome for r in of(CallRecord, records, "resilient")}
    assert outcomes == {"ok", "degraded"}
    assert {r.outcome for r in of(CallRecord, records, "naive")} == {"ok"}


async def test_a_condition_that_never_holds_is_not_found_out(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    cluster.holds = False
    records = await run(only(replace(LOSS, calibrate_loss=False), "naive"), substrate, tmp_path)
    assert {r.name: r.ok for r in of(CheckRecord, records, "naive")}["fault_condition"] is None
    assert [r.step for r in of(FaultRecord, records, "naive")] == ["scheduled"]
    assert not any(word.startswith("kill") for word in substrate.asked)


async def test_a_fault_that_cannot_be_verified_is_not_found_out(
    substrate: FakeSubstrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.kill_replica.VERIFY_WITHIN_S", 0.1)
    substrate.immortal = True
    asked = request(only(replace(LOSS, calibrate_loss=False), "naive"), tmp_path)
    path = await conduct(replace(asked, bounds=replace(BOUNDS, return_s=0.3)), substrate, Silent())
    records = list(history.read(path))
    checks = {r.name: r.ok for r in of(CheckRecord, records, "naive")}
    assert checks["fault_verified"] is None
    assert "verified" not in [r.step for r in of(FaultRecord, records, "naive")]


async def test_compose_style_loss_comes_back_by_the_revert(tmp_path: Path) -> None:
    async with FakeCluster(serve_restarts=False).serving() as cluster:
        substrate = FakeSubstrate(cluster)
        records = await run(only(replace(LOSS, calibrate_loss=False), "resilient"), substrate, tmp_path)
    assert {r.name: r.ok for r in of(CheckRecord, records, "resilient")}["replica_returned"] is True
    assert [word.split()[0] for word in substrate.asked] == ["kill", "restore"]


async def test_leftovers_are_named(substrate: FakeSubstrate, tmp_path: Path) -> None:
    substrate.left = ["engine process 4711 has no replica above it"]
    path = await conduct(
        replace(request(only(SLOW, "control"), tmp_path), bounds=replace(BOUNDS, quiet_s=0.2)),
        substrate,
        Silent(),
    )
    check = next(r for r in history.read(path) if isinstance(r, CheckRecord) and r.name == "no_leftovers")
    assert check.ok is False
    assert check.detail["left"] == substrate.left


async def test_cancelling_a_run_reverts_the_fault_and_closes_the_history(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    long_hold = replace(SLOW, phases=replace(SLOW.phases, hold_s=30), arms=SLOW.arms[2:])
    task = asyncio.create_task(conduct(request(long_hold, tmp_path), substrate, Silent()))

    async def slow() -> bool:
        return bool(cluster.toxics["tool"])

    assert await until(slow, 60, 0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.toxics["tool"] == []
    assert UndoLog(tmp_path / "run").entries() == []
    records = list(history.read(tmp_path / "out" / "history.jsonl"))
    assert isinstance(records[-1], EndRecord)
    assert records[-1].reason == "interrupted"


async def test_what_a_killed_run_left_is_reverted_by_the_next(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    claim_run_dir(tmp_path / "run")
    undo = UndoLog(tmp_path / "run")
    undo.add("latency", "fake", "tool", {"proxy": "tool", "settings": {"latency_s": 9.0, "jitter_s": 0.0}})
    cluster.toxics["tool"].append(
        {
            "name": "brownout-latency",
            "type": "latency",
            "stream": "downstream",
            "toxicity": 1.0,
            "attributes": {"latency": 9000},
        }
    )
    records = await run(only(SLOW, "control"), substrate, tmp_path)
    assert undo.entries() == []
    assert {r.outcome for r in of(CallRecord, records, "control")} == {"ok"}


async def test_without_running_cluster_nothing_is_run(substrate: FakeSubstrate, tmp_path: Path) -> None:
    substrate.running = False
    with pytest.raises(NotRunningError):
        await conduct(request(SLOW, tmp_path), substrate, Silent())
    assert not (tmp_path / "out").exists()


async def test_a_cluster_that_the_run_brought_up_is_taken_down_again(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    substrate.running = False
    await conduct(replace(request(only(SLOW, "control"), tmp_path), up=True), substrate, Silent())
    assert substrate.asked == ["up", "down"]


async def test_a_cluster_that_was_up_is_left_up(substrate: FakeSubstrate, tmp_path: Path) -> None:
    await conduct(replace(request(only(SLOW, "control"), tmp_path), up=True), substrate, Silent())
    assert substrate.asked == []


async def test_nothing_is_overwritten(substrate: FakeSubstrate, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "history.jsonl").write_text("kept")
    with pytest.raises(FolderTakenError, match="--out"):
        await conduct(request(SLOW, tmp_path), substrate, Silent())
    assert (tmp_path / "out" / "history.jsonl").read_text() == "kept"


async def test_an_unknown_link_is_met_before_anything_is_measured(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    wrong = replace(SLOW, faults=(FaultPlan("latency", "tol", settings={"latency_s": 1.0}),))
    with pytest.raises(UnknownName, match="'tool'"):
        await conduct(request(wrong, tmp_path), substrate, Silent())
    assert not any("calibrate" in str(event.get("request_id")) for event in cluster.events)
    last = list(history.read(tmp_path / "out" / "history.jsonl"))[-1]
    assert isinstance(last, EndRecord)
    assert last.reason.startswith("failed: UnknownName")


async def test_the_last_replica_is_never_killed(tmp_path: Path) -> None:
    async with FakeCluster(replicas_wanted=1).serving() as cluster:
        with pytest.raises(BlastRadius, match="start more replicas"):
            await conduct(request(LOSS, tmp_path), FakeSubstrate(cluster), Silent())


async def test_two_runs_at_a_time_are_refused(substrate: FakeSubstrate, tmp_path: Path) -> None:
    first = asyncio.create_task(
        conduct(request(only(SLOW, "control"), tmp_path, "first"), substrate, Silent())
    )

    async def begun() -> bool:
        return (tmp_path / "first" / "history.jsonl").exists()

    assert await until(begun, 10, 0.005)
    with pytest.raises(SubstrateError, match="another run is going on"):
        await conduct(request(SLOW, tmp_path, "second"), substrate, Silent())
    await first


# --- other faults than a loss ------------------------------------------------------------------------------

MIXED = replace(
    LOSS,
    name="small_mix",
    load=replace(
        LOSS.load,
        classes=(
            CallClass("critical", 0.5, (8, 12), (6, 10), priority="critical", surge_share=0.1),
            CallClass("bulk", 0.5, (8, 12), (6, 10), priority="sheddable", tenant="batch", surge_share=0.9),
        ),
    ),
    objectives=(Objective("success_rate", 0.5, call_class="critical"),),
    counted="hold_window",
    calibrate_loss=False,
)


async def test_a_burst_adds_the_same_calls_to_the_arms_with_the_fault_and_none_to_the_control_arm(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.burst.LOOK_AFTER_S", 0.2)
    phases = replace(MIXED.phases, hold_s=1.2)
    bursting = replace(MIXED, faults=(FaultPlan("burst", "client", settings={"times": 3.0}),), phases=phases)
    path = await conduct(request(bursting, tmp_path, rate_per_s=40), substrate, Silent())
    records = list(history.read(path))
    added = {
        arm: {(r.n, r.prompt_sha, r.call_class) for r in of(CallRecord, records, arm) if r.surge}
        for arm in ("control", "naive", "resilient")
    }
    assert added["control"] == set()
    sent = sorted(sorted(calls) for calls in (added["naive"], added["resilient"]))
    fewest = min(
        map(len, sent)
    )  # a burst ends with the hold, whatever was not sent by then on a busy machine
    assert sent[0][:fewest] == sent[1][:fewest]
    # 80 a second for 1.2 s
    assert 40 < len(added["naive"]) < 150
    for arm in ("naive", "resilient"):
        steps = [r.step for r in of(FaultRecord, records, arm)]
        assert steps == ["scheduled", "injected", "verified", "reverted"]
        verified = next(r for r in of(FaultRecord, records, arm) if r.step == "verified")
        assert verified.detail["extra_sent"] > 0
    assert {h.get("x-brownout-tenant") for h in cluster.headers} == {None, "batch"}
    assert UndoLog(tmp_path / "run").entries() == []
    checks = {c.name: c.status for c in judge(records, resamples=20).checks if c.name == "same_arrivals"}
    assert checks == {"same_arrivals": "pass"}


async def test_a_frozen_replica_holds_the_naive_arm_and_is_thawed_by_the_revert(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.freeze_replica.SILENT_S", 0.2)
    freezing = replace(
        LOSS,
        name="small_freeze",
        faults=(FaultPlan("freeze_replica", "replica-*", when={"streaming": 1}),),
        counted="held_and_hold",
        calibrate_loss=False,
    )
    records = await run(only(freezing, "naive"), substrate, tmp_path)
    steps = [r.step for r in of(FaultRecord, records, "naive")]
    assert steps == ["scheduled", "condition", "injected", "verified", "reverted"]
    assert [word.split()[0] for word in substrate.asked] == ["freeze", "thaw"]
    assert all(replica.thawed.is_set() for replica in cluster.listed)
    waits = [c.ended_at - c.scheduled_at for c in of(CallRecord, records, "naive") if c.outcome == "ok"]
    assert max(waits) > 0.2, "a call of the frozen replica waits until it is thawed"
    assert {c.outcome for c in of(CallRecord, records, "naive")} == {"ok"}


async def test_a_fault_on_every_link_is_injected_proven_and_reverted_on_each(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    everywhere = FaultPlan("latency", "replica-*", settings={"latency_s": 0.05}, every=True)
    slowed = replace(MIXED, name="small_storm", faults=(everywhere,), counted="after_revert")
    records = await run(only(slowed, "resilient"), substrate, tmp_path)
    labels = {"replica-0", "replica-1", "replica-2"}
    for step in ("scheduled", "injected", "verified", "reverted"):
        hit = [r.target.split(".")[0] for r in of(FaultRecord, records, "resilient") if r.step == step]
        assert (len(hit), set(hit)) == (3, labels), step
    assert not any(cluster.toxics.values())


async def test_a_capacity_is_measured_once_for_runs_that_share_it(
    cluster: FakeCluster, substrate: FakeSubstrate, tmp_path: Path
) -> None:
    shared = SharedCapacity()
    runs = []
    for name in ("first", "second"):
        asked = replace(request(only(MIXED, "control"), tmp_path, name, None), shared=shared)
        asked = replace(asked, experiment=replace(asked.experiment, faults=()))
        runs.append(list(history.read(await conduct(asked, substrate, Silent()))))
    measured, taken = (of(CalibrationRecord, records) for records in runs)
    assert [(r.replicas, r.calls_per_s) for r in measured] == [(r.replicas, r.calls_per_s) for r in taken]
    assert [r.shared_from for r in measured] == [""]
    assert taken[0].shared_from
    assert taken[0].measured_at == measured[0].measured_at
    told = {r.name: r for r in of(CheckRecord, runs[1], "")}
    assert told["capacity_shared"].detail["age_s"] >= 0
    assert "capacity_shared" not in {r.name for r in of(CheckRecord, runs[0], "")}
    assert cluster.profiles_set.count({"profile": "resilient", "without": list(WITHOUT)}) == 1
