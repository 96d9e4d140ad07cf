"""The containers of one compose project, asked of the container engine without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from chaos.substrate import SubstrateError
from chaos.substrates.processes import REPLICA_TITLE

T = TypeVar("T")
LABEL_PROJECT = "com.docker.compose.project"
LABEL_SERVICE = "com.docker.compose.service"
LABEL_ONE_OFF = "com.docker.compose.oneoff"
ENGINE_TIMEOUT_S = 20
ENGINE_PROGRAM = """
import os, signal, sys
processes = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        title = open(f"/proc/{pid}/cmdline").read().replace(chr(0), " ")
        state, parent = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[:2]
    except OSError:
        continue
    processes[int(pid)] = (title, int(parent), state)
def of_replica(pid):
    return pid in processes and sys.argv[2] in processes[pid][0]
heads = {pid for pid in processes if of_replica(pid) and not of_replica(processes[pid][1])}
for pid, (title, parent, state) in processes.items():
    if parent in heads and state != "Z":
        if sys.argv[1] != "none":
            os.kill(pid, getattr(signal, "SIG" + sys.argv[1]))
        print(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0])
"""
"""Run inside a replica's container: the engine is what runs below the replica's own process, the HTTP server."""


class Containers:
    """Reads and changes a project's containers; whatever the engine raises becomes a SubstrateError.

    Args:
        project: its compose name.
        engine: a docker client, for tests; default: one made from the environment on first use.
    """

    def __init__(self, project: str, engine: Any | None = None) -> None:
        self.project = project
        self._engine = engine

    def client(self) -> Any:
        """Return the engine's client.

        Raises:
            SubstrateError: no engine answers, or its Python package is missing.
        """
        if self._engine is None:
            try:
                import docker

                engine = docker.from_env(timeout=ENGINE_TIMEOUT_S)
                engine.ping()
            except ImportError as error:
                raise SubstrateError(
                    "substrate 'compose' needs the Python package 'docker': pip install 'brownout[chaos]'"
                ) from error
            except Exception as error:  # the SDK lets errors of several libraries through
                raise SubstrateError(
                    f"no container engine answers ({error}); start Docker, or use --on local"
                ) from error
            self._engine = engine
        return self._engine

    def answer(self, question: Callable[[], T]) -> T:
        """Return the answer to a question to the engine.

        Raises:
            SubstrateError: the engine does not answer, or refuses.
        """
        self.client()
        try:
            return question()
        except SubstrateError:
            raise
        except Exception as error:
            raise SubstrateError(f"the container engine refused: {error}") from error

    async def ask(self, question: Callable[[], T]) -> T:
        """As :meth:`answer`, in a thread."""
        return await asyncio.to_thread(self.answer, question)

    def of(self, service: str | None = None) -> list[Any]:
        """Return the project's containers, stopped ones too, without those of ``compose run``."""
        labels = [f"{LABEL_PROJECT}={self.project}"]
        if service:
            labels.append(f"{LABEL_SERVICE}={service}")
        found = self.client().containers.list(all=True, filters={"label": labels})
        return [c for c in found if c.labels.get(LABEL_ONE_OFF, "False") != "True"]

    def by_address(self, service: str) -> dict[str, str]:
        """Return the ids of a service's running containers, by their addresses and names in the network."""
        found: dict[str, str] = {}
        for container in self.of(service):
            if container.status == "running":
                for network in _networks(container):
                    for name in (network.get("IPAddress"), *(network.get("Aliases") or ())):
                        if name:
                            found.setdefault(name, container.id)
        return found

    def address(self, service: str) -> str | None:
        """Return the network address of a service's first container."""
        addresses = (n["IPAddress"] for c in self.of(service) for n in _networks(c) if n.get("IPAddress"))
        return next(addresses, None)

    def published(self, service: str, port: int) -> str | None:
        """Return host:port under which a service's port is published on this host."""
        for container in self.of(service):
            for bound in container.attrs["NetworkSettings"].get("Ports", {}).get(f"{port}/tcp") or ():
                return f"{bound['HostIp']}:{bound['HostPort']}"
        return None

    def kill(self, container: str) -> None:
        """Send SIGKILL."""
        self.client().api.kill(container, signal="SIGKILL")

    def runs(self, container: str) -> bool:
        """Tell whether that very container exists and runs."""
        import docker.errors

        try:
            return str(self.client().containers.get(container).status) == "running"
        except docker.errors.NotFound:
            return False

    def start(self, container: str) -> None:
        """Start it unless it runs. One that is gone was replaced: there is nothing to bring back."""
        import docker.errors

        try:
            found = self.client().containers.get(container)
        except docker.errors.NotFound:
            return
        if found.status != "running":
            found.start()

    def run(self, service: str, command: list[str]) -> tuple[int, str, str]:
        """Run a command in a service's running container; return its exit code, its output and its errors.

        Raises:
            SubstrateError: none runs.
        """
        found = next((c for c in self.of(service) if c.status == "running"), None)
        if found is None:
            raise SubstrateError(f"no container of service {service!r} runs, in which {command[0]} could")
        ended = found.exec_run(command, demux=True)
        output, errors = ((part or b"").decode(errors="replace") for part in ended.output)
        return int(ended.exit_code), output, errors

    def signal_engine(self, container: str, name: str) -> None:
        """Send a signal to the engine inside a replica's container, from inside: its pids are the container's own.

        A container that is gone has no engine to let go on; there SIGCONT does nothing.

        Raises:
            SubstrateError: there is no engine in it.
        """
        if name == "CONT" and not self.runs(container):
            return
        states = self._engine_states(container, name)
        if not states and name != "CONT":
            raise SubstrateError(
                f"container {container[:12]} has no engine process; is its replica starting?"
            )

    def engine_is_stopped(self, container: str) -> bool:
        """Tell whether every process of the engine inside a container is held by a signal."""
        states = self._engine_states(container, "none")
        return bool(states) and set(states) == {"T"}

    def _engine_states(self, container: str, name: str) -> list[str]:
        """Return the states of the engine's processes, as the kernel writes them, after a signal (or ``none``)."""
        found = (
            self.client()
            .containers.get(container)
            .exec_run(["python3", "-c", ENGINE_PROGRAM, name, REPLICA_TITLE])
        )
        if found.exit_code != 0:
            raise SubstrateError(
                f"container {container[:12]}: its engine cannot be found: {found.output[-300:].decode()}"
            )
        return str(found.output.decode()).split()

    def ended_badly(self) -> Iterator[str]:
        """Yield, in words, containers that ended with an error. One that has done its work ends with 0."""
        for container in self.of():
            code = container.attrs.get("State", {}).get("ExitCode", 1)
            if container.status not in ("running", "created") and code != 0:
                yield f"container {container.name} is {container.status}"


def _networks(container: Any) -> list[dict[str, Any]]:
    return list(container.attrs["NetworkSettings"]["Networks"].values())
