"""``chaos.testing`` as a user's own, ordinary (not async) test calls it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.names import UnknownName
from chaos.progress import Silent
from chaos.testing import run_experiment
from tests.fakes.cluster import FakeCluster, FakeSubstrate
from tests.integration.test_runner import BOUNDS, SLOW


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A cluster that lives in a thread, as a real one lives in other processes."""
    loop, ready, made = asyncio.new_event_loop(), threading.Event(), FakeCluster()
    ended = asyncio.Event()

    async def serve() -> None:
        async with made.serving():
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    yield made
    loop.call_soon_threadsafe(ended.set)
    thread.join(10)
    loop.close()


def test_an_experiment_in_one_call(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWNOUT_RUN_DIR", str(tmp_path / "run"))
    out = tmp_path / "report"
    verdict = run_experiment(
        SLOW, on=FakeSubstrate(cluster), arms=["control"], out=out, progress=Silent(), bounds=BOUNDS
    )
    assert verdict.status == "inconclusive", "one arm alone shows nothing"
    assert {check.name for check in verdict.deciding} >= {"fault_has_teeth", "policies_work"}
    assert sorted(path.name for path in out.iterdir()) == [
        "history.jsonl",
        "junit.xml",
        "report.html",
        "report.md",
        "verdict.json",
    ]


def test_a_typo_is_told_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="'worker_loss'"):
        run_experiment("worker_lost")
    with pytest.raises(UnknownName, match="'local'"):
        run_experiment("worker_loss", on="locl")
