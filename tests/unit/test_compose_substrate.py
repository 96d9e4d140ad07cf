"""The compose substrate against a container engine that is a handful of Python objects."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import docker.errors
import psutil
import pytest

from chaos.substrate import Endpoints, NotRunningError, StorePlace, SubstrateError
from chaos.substrates.compose import ComposeSubstrate
from tests.fakes.cluster import FakeCluster


@dataclass
class FakeContainer:
    id: str
    service: str
    address: str
    status: str = "running"
    exit_code: int = 0
    project: str = "lab"
    one_off: bool = False
    title: str = "replica-of-no-process"

    @property
    def name(self) -> str:
        return f"{self.project}-{self.service}-{self.id}"

    @property
    def labels(self) -> dict[str, str]:
        return {
            "com.docker.compose.project": self.project,
            "com.docker.compose.service": self.service,
            "com.docker.compose.oneoff": str(self.one_off),
        }

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "NetworkSettings": {
                "Networks": {"lab": {"IPAddress": self.address, "Aliases": [self.service]}},
                "Ports": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18080"}], "8474/tcp": None},
            },
            "State": {"ExitCode": self.exit_code},
            "Config": {"Env": ["BROWNOUT_PACE=on", "PATH=/bin"]},
            "Image": "sha256:0123456789abcdef0123",
        }

    def start(self) -> None:
        self.status = "running"

    def exec_run(self, command: list[str], demux: bool = False) -> Any:
        """Run it here; the title by which a replica is told is this container's own, so that none of ours is met."""
        if demux:
            return SimpleNamespace(exit_code=3, output=(" ".join(command).encode(), None))
        python, option, program, name, title = command
        assert (python, option, title) == ("python3", "-c", "ServeReplica:llm")
        done = subprocess.run(
            [sys.executable, option, program, name, self.title], capture_output=True, check=False
        )
        return SimpleNamespace(exit_code=done.returncode, output=done.stdout + done.stderr)


@dataclass
class FakeEngine:
    held: list[FakeContainer]
    killed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def containers(self) -> Any:
        return SimpleNamespace(list=self._list, get=self._get)

    @property
    def api(self) -> Any:
        return SimpleNamespace(kill=self._kill)

    def _list(self, **asked: Any) -> list[FakeContainer]:
        assert asked["all"] is True
        wanted = {tuple(label.split("=", 1)) for label in asked["filters"]["label"]}
        return [c for c in self.held if wanted <= c.labels.items()]

    def _get(self, name: str) -> FakeContainer:
        for container in self.held:
            if container.id == name:
                return container
        raise docker.errors.NotFound("no such container")

    def _kill(self, name: str, signal: str) -> None:
        self.killed.append((name, signal))
        container = self._get(name)
        if container.status != "running":
            raise docker.errors.APIError("is not running")
        container.status, container.exit_code = "exited", 137

    def version(self) -> dict[str, str]:
        return {"Version": "26.1"}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(replicas_wanted=2).serving() as running:
        yield running


@pytest.fixture
def engine(cluster: FakeCluster) -> FakeEngine:
    cluster.upstreams = {cluster.listed[0].link: "172.1.0.5:30000", cluster.listed[1].link: "172.1.0.6:30000"}
    return FakeEngine(
        [
            FakeContainer("w0", "worker", "172.1.0.5"),
            FakeContainer("w1", "worker", "172.1.0.6"),
            FakeContainer("p", "toxiproxy", "172.1.0.9"),
            FakeContainer("d", "deploy", "172.1.0.8", status="exited"),
            FakeContainer("other", "worker", "172.1.0.5", project="elsewhere"),
            FakeContainer("chaos", "worker", "172.1.0.5", status="exited", exit_code=1, one_off=True),
        ]
    )


@pytest.fixture
def substrate(cluster: FakeCluster, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> ComposeSubstrate:
    place = ComposeSubstrate("lab", inside=False, engine=engine)
    urls = Endpoints(cluster.url, cluster.url, cluster.url, cluster.url)
    monkeypatch.setattr(place, "_urls", lambda: urls)
    return place


async def test_a_replica_is_the_container_at_its_links_upstream(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    first, second = await substrate.replicas()
    assert [(r.label, r.handle) for r in (first, second)] == [("replica-0", "w0"), ("replica-1", "w1")]
    assert not await substrate.is_dead(second)
    await substrate.kill(second)
    assert engine.killed == [("w1", "SIGKILL")]
    assert await substrate.is_dead(second)
    assert [r.handle for r in await substrate.replicas()] == ["w0"]
    assert await substrate.leftovers() == ["container lab-worker-w1 is exited"]
    await substrate.restore(second)
    await substrate.restore(second)
    assert not await substrate.is_dead(second)
    assert await substrate.leftovers() == []


async def test_a_container_that_was_removed_is_dead_and_needs_no_bringing_back(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    first, _ = await substrate.replicas()
    engine.held.remove(engine.held[0])
    assert await substrate.is_dead(first)
    await substrate.restore(
        first
    )  # it raised, and the undo entry of a killed run blocked every later command
    assert await substrate.is_dead(first)


def replica_with_engine(title: str) -> tuple[subprocess.Popen[str], int]:
    """As in a container: the engine is a child of the replica's process, and may bear its title. Returns its pid."""
    child = "import sys; print('up', flush=True); sys.stdin.read()"
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]], "
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline(); "
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", parent, title, child]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


async def test_a_gateway_is_the_container_of_its_service(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    engine.held.append(FakeContainer("g", "gateway", "172.1.0.7"))
    (gateway,) = await substrate.gateways()
    await substrate.kill_gateway(gateway)
    assert engine.killed == [("g", "SIGKILL")]
    assert await substrate.gateway_is_dead(gateway)
    assert await substrate.gateways() == []
    with pytest.raises(SubstrateError, match="no container of service 'gateway'"):
        await substrate.gateway_command("keys", "list")

    await substrate.start_gateway(gateway)
    await substrate.start_gateway(gateway)
    assert not await substrate.gateway_is_dead(gateway)
    ended = await substrate.gateway_command("keys", "list")
    assert (ended.code, ended.output, ended.errors) == (3, "python -m cluster.gateway.keys list", "")
    assert await substrate.store() == StorePlace(link="store")


async def test_a_project_does_not_take_settings_of_an_experiment(substrate: ComposeSubstrate) -> None:
    await substrate.configure_gateway({})
    with pytest.raises(SubstrateError, match="BROWNOUT_X"):
        await substrate.configure_gateway({"BROWNOUT_X": "1"})


async def test_freezing_stops_what_runs_below_the_replicas_process_in_its_container(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    title = f"a-replica-of-{uuid.uuid4().hex}"
    process, pid = replica_with_engine(title)
    first, second = await substrate.replicas()
    engine.held[0].title = title
    try:
        assert not await substrate.is_frozen(first)
        await substrate.freeze(first)
        assert await substrate.is_frozen(first)
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
        await substrate.thaw(first)
        await substrate.thaw(first)
        assert not await substrate.is_frozen(first)
    finally:
        psutil.Process(pid).kill()
        process.communicate("")
    with pytest.raises(SubstrateError, match="no engine process"):
        await substrate.freeze(second)
    await substrate.thaw(second)
    engine.held.remove(engine.held[0])
    await substrate.thaw(
        first
    )  # a container that is gone needs no thawing, and heal must not stumble over it


async def test_a_project_without_running_containers_is_not_running(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    engine.held = [c for c in engine.held if c.project != "lab" or c.status != "running"]
    with pytest.raises(NotRunningError, match="docker compose up -d --wait"):
        await substrate.endpoints()


async def test_from_the_host_a_service_is_reached_at_its_containers_address(
    substrate: ComposeSubstrate, engine: FakeEngine
) -> None:
    assert await substrate.reachable("toxiproxy:8090") == "172.1.0.9:8090"
    assert await substrate.reachable("10.0.0.1:80") == "10.0.0.1:80"
    assert (
        await ComposeSubstrate("lab", inside=True, engine=engine).reachable("toxiproxy:8090")
        == "toxiproxy:8090"
    )


def test_endpoints_inside_the_network_and_on_the_host(engine: FakeEngine) -> None:
    inside = ComposeSubstrate("lab", inside=True, engine=engine)._urls()
    assert inside.base_url == "http://toxiproxy:8080"
    assert inside.admin_url == "http://gateway:8082"
    assert inside.links_url == "http://links:8083"
    assert inside.toxiproxy_url == "http://toxiproxy:8474"
    host = ComposeSubstrate("lab", inside=False, engine=engine)._urls()
    assert (host.base_url, host.admin_url) == ("http://127.0.0.1:18080", "http://127.0.0.1:8082")


async def test_no_engine_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SubstrateError, match=r"no container engine answers.*--on local"):
        await ComposeSubstrate("lab", inside=False).endpoints()


def test_settings_and_versions(substrate: ComposeSubstrate) -> None:
    assert substrate.settings() == {"replicas": 2, "project": "lab", "pace": "on"}
    assert substrate.versions()["engine"] == "26.1"
    assert substrate.versions()["image worker"] == "sha256:0123456789ab"
