"""The thread that imports the engine gives way, also in a session that stands lower than it would go."""

from __future__ import annotations

import os
import threading

import pytest

from cluster import engine


@pytest.mark.parametrize(("stands", "goes"), [(0, engine._LOW_PRIORITY), (19, 19)])
def test_priority_only_goes_down(monkeypatch: pytest.MonkeyPatch, stands: int, goes: int) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "getpriority", lambda which, who: stands)
    monkeypatch.setattr(os, "setpriority", lambda which, who, value: asked.append((which, who, value)))
    engine._lower_priority()
    assert asked == [(os.PRIO_PROCESS, threading.get_native_id(), goes)]
