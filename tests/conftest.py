"""Fixtures that more than one folder of tests needs: the real local cluster, started once a session."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.public import ClusterState

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("BROWNOUT_SHARED", ROOT.parent / "shared"))


def has_engine() -> bool:
    """Tell whether a container engine with compose answers here."""
    if shutil.which("docker") is None:
        return False
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        if subprocess.run(command, capture_output=True, timeout=30, check=False).returncode != 0:
            return False
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a container engine where there is none, and run those tests last.

    With BROWNOUT_REQUIRE_ENGINE=1 (as in CI) a missing engine is an error and not a skip.
    """
    items.sort(
        key=lambda item: (bool(item.get_closest_marker("docker")), bool(item.get_closest_marker("cluster")))
    )
    wanted = [item for item in items if item.get_closest_marker("docker")]
    if not wanted or has_engine():
        return
    if os.environ.get("BROWNOUT_REQUIRE_ENGINE") == "1":
        raise pytest.UsageError("BROWNOUT_REQUIRE_ENGINE=1, but no container engine with compose answers")
    for item in wanted:
        item.add_marker(pytest.mark.skip(reason="no container engine with compose answers here"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterState]:
    """A running local cluster: real Ray Serve, real vLLM, paced. One that is already up is used and kept."""
    was_up = (state := ClusterState.load()) is not None
    subprocess.run([sys.executable, "-m", "cluster.local", "up"], check=True, cwd=ROOT)
    state = ClusterState.load()
    assert state is not None
    yield state
    if not was_up:
        subprocess.run([sys.executable, "-m", "cluster.local", "down"], check=True, cwd=ROOT)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with recordings and traces that lies beside the project on some machines."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent (BROWNOUT_SHARED names another place)")
    return SHARED
