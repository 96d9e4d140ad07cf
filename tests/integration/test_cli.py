"""The command line: exit codes, nearest names, and what is left when it is interrupted or killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos import cli, commands, history
from chaos.history import EndRecord, Record
from chaos.undo import UndoLog
from chaos.waiting import until
from cluster import public
from tests.fakes.cluster import FakeCluster, FakeSubstrate
from tests.fakes.history import records, write

RUNS_A_SLOW_TOOL = """
import sys
from dataclasses import replace
from chaos import cli, commands
from chaos.bounds import Bounds
from chaos.experiment import Experiment
from chaos.substrate import Endpoints
from tests.fakes.cluster import FakeSubstrate
from tests.integration.test_runner import BOUNDS, SLOW

url = sys.argv[1]

class Remote(FakeSubstrate):
    name = "local"
    async def endpoints(self):
        return Endpoints(url, url, url, url)
    def settings(self):
        return {"replicas": 3}

long_hold = replace(SLOW, phases=replace(SLOW.phases, hold_s=60), arms=SLOW.arms[2:])
commands.scenario = lambda name: long_hold
commands.substrate = lambda name: Remote(None)
sys.exit(cli.main(["run", "slow_tool", "--rate", "40", "--out", sys.argv[2]]))
"""


@pytest.fixture(autouse=True)
def _own_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWNOUT_RUN_DIR", str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["run", "worker_los"], "'worker_loss'"),
        (["run", "worker_loss", "--without", "retri"], "'retry'"),
        (["run", "worker_loss", "--arms", "control,nave"], "'naive'"),
        (["run", "worker_loss", "--on", "compos"], "'compose'"),
        (["up", "--on", "lokal"], "'local'"),
        (["up", "--small", "many"], "'many' is not a count"),
        (["up", "--small", "33"], "'33' is not a count"),
        (["rum", "worker_loss"], "'run'"),
        (["calibrate", "slowtool"], "'slow_tool'"),
        (["report", "/nowhere/at/all"], "history.jsonl"),
        (["run"], "scenario"),
        (["run", "worker_loss", "--rate", "-1"], "'-1' is not a rate"),
        (["run", "worker_loss", "--rate", "nan"], "'nan' is not a rate"),
        (["run", "worker_loss", "--rate", "inf"], "'inf' is not a rate"),
        (["run", "worker_loss", "--out", "/dev/null/below"], "/dev/null is no folder"),
        (["run", "worker_loss", "--sed", "3"], "--sed"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_ends_4_and_offers_the_nearest(
    arguments: list[str], offered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 4
    assert offered in capsys.readouterr().err


def test_up_passes_the_number_of_small_replicas_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Place:
        name = "local"

        async def up(self) -> None:
            seen.append(os.environ.get("BROWNOUT_SMALL_REPLICAS"))

        async def endpoints(self) -> SimpleNamespace:
            return SimpleNamespace(base_url="http://nowhere")

    async def nothing(place: object) -> None:
        return None

    monkeypatch.setattr(commands, "substrate", lambda name: Place())
    monkeypatch.setattr(commands, "_healed", nothing)
    monkeypatch.setenv("BROWNOUT_SMALL_REPLICAS", "1")
    assert cli.main(["up", "--on", "local"]) == 0
    assert cli.main(["up", "--on", "local", "--small", "2"]) == 0
    assert seen == ["1", "2"]


@pytest.mark.parametrize("command", [["run", "worker_loss"], ["status"], ["calibrate"]])
def test_what_needs_a_cluster_ends_3_and_says_how_to_start_one(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command) == 3
    assert "brownout up --on local" in capsys.readouterr().err


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (
        "worker_loss",
        "slow_tool",
        "kill_replica",
        "latency",
        "noop",
        "retry",
        "compose",
        "resilient",
    ):
        assert name in out


def test_profiles_tells_what_each_contains_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("profile naive: no policy")
    resilient = out.split("profile resilient")[1].split("in no profile")[0]
    places = [resilient.index(f"  {name} ") for name in public.PROFILE_POLICIES["resilient"]]
    assert places == sorted(places)
    assert re.search(r"ladder +protects from refusals", resilient)
    assert "hedging" not in resilient


def test_profiles_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["profiles"]["naive"] == []
    assert {name: tuple(one["policy"] for one in told["profiles"][name]) for name in public.PROFILES} == (
        public.PROFILE_POLICIES
    )
    ejection = next(one for one in told["profiles"]["resilient"] if one["policy"] == "ejection")
    assert ejection == {"policy": "ejection", "protects_from": public.PROTECTS["ejection"], "stage": False}
    assert [one["policy"] for one in told["optional"]] == list(public.OPTIONAL_POLICIES)


def test_heal_without_anything_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["heal"]) == 0
    assert "nothing was in force" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "code"),
    [
        pytest.param(records(), 0, id="pass"),
        pytest.param(records(without=["retry"]), 1, id="fail"),
        pytest.param(records()[:-1], 2, id="inconclusive: cut off"),
    ],
)
def test_report_judges_again_and_its_code_is_the_verdict(
    tmp_path: Path, found: list[Record], code: int
) -> None:
    folder = tmp_path / "report"
    write(folder / "history.jsonl", found)
    assert cli.main(["report", str(folder)]) == code
    assert (folder / "report.html").is_file()
    assert (folder / "verdict.json").is_file()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster().serving() as running:
        yield running


async def _run_until_slow(cluster: FakeCluster, out: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        RUNS_A_SLOW_TOOL,
        cluster.url,
        str(out),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )

    async def slow() -> bool:
        assert process.returncode is None, "the run ended before its fault"
        return bool(cluster.toxics["tool"])

    assert await until(slow, 60, 0.02), "the fault was never injected"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_run_reverts_its_fault_closes_its_history_and_ends_130(
    cluster: FakeCluster, tmp_path: Path, number: signal.Signals
) -> None:
    process = await _run_until_slow(cluster, tmp_path / "out")
    process.send_signal(number)
    async with asyncio.timeout(30):
        assert await process.wait() == 130
    assert cluster.toxics["tool"] == []
    assert UndoLog(tmp_path / "run").entries() == []
    last = list(history.read(tmp_path / "out" / "history.jsonl"))[-1]
    assert isinstance(last, EndRecord)
    assert last.reason == "interrupted"
    assert cluster.profile == {"profile": "resilient", "without": []}


async def test_after_kill_9_the_fault_is_in_force_until_heal(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = await _run_until_slow(cluster, tmp_path / "out")
    process.kill()
    await process.wait()
    assert cluster.toxics["tool"], "nobody was left to revert it"
    entries = UndoLog(tmp_path / "run").entries()
    assert [(entry.kind, entry.target) for entry in entries] == [("profile", "gateway"), ("latency", "tool")]
    cluster.profile = {"profile": "naive", "without": []}  # as the run had it in its naive arm

    place = FakeSubstrate(cluster)
    place.name = "local"
    monkeypatch.setattr("chaos.commands.substrate", lambda name: place)
    assert await asyncio.to_thread(cli.main, ["heal"]) == 0
    assert "latency on tool: reverted" in capsys.readouterr().out
    assert cluster.profile == {"profile": "resilient", "without": []}
    assert cluster.toxics["tool"] == []
    assert UndoLog(tmp_path / "run").entries() == []
    assert await asyncio.to_thread(cli.main, ["heal"]) == 0
    # the history was cut off by the kill: it can be read, and is never a pass
    assert await asyncio.to_thread(cli.main, ["report", str(tmp_path / "out")]) == 2
