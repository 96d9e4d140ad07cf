"""A thousand short lives of the whole pipeline, none like another, in each of which everything must hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from policies.profiles import OPTIONAL, POLICIES
from tests.simulation.batch import in_background
from tests.simulation.plan import FAULT_KINDS, draw
from tests.simulation.world import run_world

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("BROWNOUT_SIM_SEEDS", "1000"))
CHUNK = 50


@pytest.fixture(scope="module")
def batches() -> Iterator[dict[int, Future[list[str]]]]:
    """All seeds, under way in other processes."""
    with in_background(
        range(first, min(first + CHUNK, SEEDS)) for first in range(0, SEEDS, CHUNK)
    ) as running:
        yield running


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_everything_holds_whatever_fails(first: int, batches: dict[int, Future[list[str]]]) -> None:
    broken = batches[first].result()
    assert not broken, "\n".join(["", *broken])


def test_the_seeds_reach_what_they_are_for() -> None:
    """Every kind of fault and every ending is met: a simulation in which all goes well tests nothing."""
    plans = [draw(seed, POLICIES, OPTIONAL) for seed in range(300)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FAULT_KINDS)
    assert {name for plan in plans for name in plan.without} >= set(POLICIES) - {"tool_deadline"}
    endings: set[str] = set()
    events: set[str] = set()
    for seed in range(60):
        report = run_world(seed)
        endings |= set(report.outcomes)
        events |= {line.split()[1] for line in report.trace.lines()}
    assert endings >= {
        "ok",
        "left",
        "CallRejected",
        "DeadlineExceeded",
        "EngineStalled",
        "NotResumable",
        "WaitedTooLong",
        "NoReplica",
        "Overloaded",
        "ReplicaBusy",
        "ReplicaFailed",
        "ReplicaLost",
    }
    assert events >= {
        "admitted",
        "degraded",
        "ejected",
        "hedged",
        "limit",
        "refused",
        "resumed",
        "retry",
        "retry_suppressed",
        "returned",
        "straggler",
        "wasted",
    }


@pytest.mark.parametrize("seed", [3, 36])
def test_a_seed_runs_the_same_in_another_process(seed: int) -> None:
    """Neither the hash of strings nor addresses in memory have a say: what failed elsewhere fails here."""
    ours = run_world(seed)
    assert run_world(seed).digest == ours.digest
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert said.returncode == 0, said.stdout[-2000:] + said.stderr
        *lines, verdict = said.stdout.splitlines()
        assert lines == list(ours.trace.lines())
        assert verdict.endswith(f"trace {ours.digest}")


def test_seeds_differ() -> None:
    assert len({run_world(seed).digest for seed in range(5)}) == 5
