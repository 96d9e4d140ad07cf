"""A run whose calls have effects, whose callers have keys, and whose gateway is started with settings of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos import history
from chaos.bounds import Bounds
from chaos.conduct import Request, conduct
from chaos.experiment import (
    CONTROL,
    RESILIENT,
    Arm,
    CallClass,
    Experiment,
    FaultPlan,
    Load,
    Objective,
    Phases,
)
from chaos.heal import SETTINGS, heal
from chaos.history import CallRecord, EffectRecord, FaultRecord
from chaos.progress import Silent
from chaos.undo import UndoLog
from chaos.verdict import judge
from tests.fakes.cluster import FakeCluster, FakeSubstrate

BOUNDS = Bounds(settle_s=0.1, window_s=0.25, return_s=5, quiet_s=3, resolve_s=5, fault_limit_s=5, poll_s=0.02)
CRASH = Experiment(
    name="small_crash",
    question="does the runner keep the accounts?",
    load=Load(
        share=0.5,
        classes=(
            CallClass(
                "transfer",
                1.0,
                (8, 12),
                (6, 10),
                client_deadline_s=4,
                transfer=True,
                repeats=True,
                api_key="web",
            ),
        ),
    ),
    faults=(FaultPlan("kill_gateway", "gateway"),),
    objectives=(Objective("success_rate", 1.0), Objective("effects_once", 1.0)),
    counted="held_by_gateway",
    minimum_counted=5,
    phases=Phases(warm_up_s=0.05, steady_s=0.4, hold_s=0.4, recovery_s=0.6),
    arms=(CONTROL, Arm("once", "resilient", fault=True, role="naive", clients="once"), RESILIENT),
    tenants="[tenants.acme]\n",
    keys={"web": "acme/web"},
    gateway={"BROWNOUT_SOMETHING": "1"},
)


@pytest.fixture
async def substrate() -> AsyncIterator[FakeSubstrate]:
    async with FakeCluster().serving() as running:
        yield FakeSubstrate(running)


async def test_a_gateway_crash_from_its_tenants_to_the_verdict(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    request = Request(CRASH, 7, tmp_path / "out", False, 60, tmp_path / "run", BOUNDS)
    records = list(history.read(await conduct(request, substrate, Silent())))

    file = tmp_path / "run" / "tenants-of-the-experiment.toml"
    assert file.stat().st_mode & 0o077 == 0
    lent = {"BROWNOUT_SOMETHING": "1", "BROWNOUT_TENANTS_FILE": str(file)}
    asked = [word for word in substrate.asked if word.startswith(("keys", "configure"))]
    assert asked == [f"keys add acme web --file {file}", f"configure {lent}", "configure {}"]
    assert {one["Authorization"] for one in substrate.cluster.headers} == {"Bearer bo_a1b2c3_secret"}
    assert "secret" not in (tmp_path / "out" / "history.jsonl").read_text()

    steps = [r.step for r in records if isinstance(r, FaultRecord) and r.arm == "resilient"]
    assert steps == ["scheduled", "injected", "verified", "reverted"]
    effects = [r for r in records if isinstance(r, EffectRecord) and r.arm == "resilient"]
    calls = [r for r in records if isinstance(r, CallRecord) and r.arm == "resilient"]
    assert sorted(r.sender for r in effects) == sorted(r.request_id for r in calls)
    assert {r.outcome for r in calls} == {"ok"}
    assert any(len(r.tries) > 1 for r in calls)

    verdict = judge(records)
    by_name = {(check.name, check.arm): check.status for check in verdict.checks}
    assert by_name["effects_truthful", "resilient"] == "pass"
    assert by_name["audit_complete", "resilient"] == "pass"
    assert by_name["fault_has_teeth", "once"] == "pass"


async def test_heal_gives_the_gateway_back_what_a_run_that_died_had_lent_it(
    substrate: FakeSubstrate, tmp_path: Path
) -> None:
    undo = UndoLog(tmp_path)
    undo.add(SETTINGS, "fake", "gateway", {})
    assert await heal(undo, substrate) == ["gateway_settings on gateway: reverted"]
    assert substrate.asked == ["configure {}"]
