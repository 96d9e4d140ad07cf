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
from tests.fakes.stores import migrated_database, postgres, postgres_url, store, store_setting

__all__ = ["migrated_database", "postgres", "postgres_url", "store", "store_setting"]

ROOT = Path(__file__).resolve().parent.parent
COMPOSE_PROJECT = "brownout"
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


@pytest.fixture(autouse=True)
def _its_cluster(request: pytest.FixtureRequest) -> None:
    """What a test's mark says it needs is up before it starts, once for all tests with that mark."""
    for mark, fixture in (("cluster", "cluster"), ("docker", "compose")):
        if request.node.get_closest_marker(mark):
            request.getfixturevalue(fixture)


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
def compose() -> Iterator[str]:
    """The cluster in containers; gives the project's name. One that is already up is used and kept.

    The local cluster gives way first: both listen on the same ports. (The tests that need it have run by then.)
    """
    subprocess.run([sys.executable, "-m", "cluster.local", "down"], check=True, cwd=ROOT)
    was_up = bool(_left_of(COMPOSE_PROJECT, "ps", "-q"))
    try:
        subprocess.run(["docker", "compose", "up", "-d", "--wait"], check=True, cwd=ROOT, timeout=550)
        yield COMPOSE_PROJECT
    finally:
        if not was_up:
            down = ["docker", "compose", "down", "-v", "--remove-orphans"]
            subprocess.run(down, check=True, cwd=ROOT, timeout=180)
    if not was_up:
        left = [
            name
            for command in (("ps", "-aq"), ("volume", "ls", "-q"), ("network", "ls", "-q"))
            for name in _left_of(COMPOSE_PROJECT, *command)
        ]
        assert left == [], "'docker compose down -v' left something"


def _left_of(project: str, *command: str) -> list[str]:
    label = f"label=com.docker.compose.project={project}"
    listed = subprocess.run(
        ["docker", *command, "--filter", label], capture_output=True, text=True, check=True, timeout=60
    )
    return listed.stdout.split()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with recordings and traces that lies beside the project on some machines."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is absent (BROWNOUT_SHARED names another place)")
    return SHARED
