"""A run whose calls have effects, whose callers have keys, and whose gateway is started with settings of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
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
from chaos.heal import SETTINGS, heal, settings_lent
from chaos.history import CallRecord, EffectRecord, FaultRecord
from chaos.progress import Silent
from chaos.substrate import Ended, SubstrateError
from chaos.tenants import made_for
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


class Lending(FakeSubstrate):
    """Looks at the tenants file when the gateway gets it; a gateway that is ``stuck`` cannot be started again."""

    modes: tuple[int, ...] = ()
    stuck = False

    async def configure_gateway(self, settings: Mapping[str, str]) -> None:
        if self.stuck:
            raise SubstrateError("the gateway is stuck")
        if file := settings.get("BROWNOUT_TENANTS_FILE"):
            self.modes += (os.stat(file).st_mode & 0o777,)
        await super().configure_gateway(settings)


@pytest.fixture
async def substrate() -> AsyncIterator[Lending]:
    async with FakeCluster().serving() as running:
        yield Lending(running)


async def test_a_gateway_crash_from_its_tenants_to_the_verdict(substrate: Lending, tmp_path: Path) -> None:
    request = Request(CRASH, 7, tmp_path / "out", False, 60, tmp_path / "run", BOUNDS)
    records = list(history.read(await conduct(request, substrate, Silent())))

    file = tmp_path / "run" / "tenants-of-the-experiment.toml"
    assert substrate.modes == (0o600,)
    assert not file.exists(), "it is of no more use"
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
    substrate: Lending, tmp_path: Path
) -> None:
    undo = UndoLog(tmp_path)
    file = tmp_path / "tenants-of-the-experiment.toml"
    for path in (file, tmp_path / f"{file.name}.lock"):
        path.touch()
    undo.add(SETTINGS, "fake", "gateway", {"file": str(file)})
    assert await heal(undo, substrate) == ["gateway_settings on gateway: reverted"]
    assert substrate.asked == ["configure {}"]
    assert os.listdir(tmp_path) == ["undo"]


async def test_a_run_whose_keys_cannot_be_made_leaves_no_tenants_file(
    substrate: Lending, tmp_path: Path
) -> None:
    substrate.commands["keys"] = Ended(4, "", "no such tenant")
    with pytest.raises(SubstrateError, match="no key could be made"):
        await made_for(CRASH, substrate, tmp_path)
    assert not os.listdir(tmp_path)


async def test_a_tenants_file_that_a_gateway_still_goes_by_stays(substrate: Lending, tmp_path: Path) -> None:
    file, undo = tmp_path / "tenants-of-the-experiment.toml", UndoLog(tmp_path)
    file.touch()
    with pytest.raises(SubstrateError, match="stuck"):
        async with settings_lent(substrate, undo, {"A": "1"}, file):
            substrate.stuck = True
    assert file.exists()
    substrate.stuck = False
    await heal(undo, substrate)
    assert not file.exists()
    assert not undo.entries()
