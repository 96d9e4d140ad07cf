"""A run that showed nothing is repeated, and what it stood on is measured anew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos import testing
from chaos.conduct import Request
from chaos.history import CalibrationRecord
from chaos.shared_capacity import SharedCapacity


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[list[bool], list[str]]:
    """Let a run find or keep a capacity and nothing else; whether each found one, and the verdicts to give."""
    found: list[bool] = []
    verdicts: list[str] = []
    record = CalibrationRecord(
        3, calls_per_s=30.0, tokens_per_s=540.0, duration_s=8.0, calls=240, measured_at=10.0
    )

    async def conduct(request: Request, *_: Any) -> Path:
        assert request.shared is not None
        found.append(bool(request.shared.find("it")))
        request.shared.keep("it", [record], "run")
        return tmp_path / "history.jsonl"

    monkeypatch.setattr(testing, "_MEASURED", SharedCapacity(now=lambda: record.measured_at))
    monkeypatch.setattr(testing, "conduct", conduct)
    monkeypatch.setattr(
        testing.report, "write", lambda *_: SimpleNamespace(status=verdicts.pop(0), deciding=())
    )
    return found, verdicts


def test_a_repeat_measures_the_capacity_anew(runs: tuple[list[bool], list[str]]) -> None:
    found, verdicts = runs
    verdicts += ["pass", "inconclusive", "pass"]
    for _ in range(2):
        assert testing.run_experiment("worker_loss", repeats=1, share_capacity=True).status == "pass"
    assert found == [False, True, False], "the second run may use the first one's, the repeat may not"
