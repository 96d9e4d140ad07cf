"""The cluster as processes of this machine, found through the state file that ``cluster.local`` writes.

A replica is the process that listens on its link's upstream port (a Ray worker) and everything below it (its
engine). It is killed by process ids that were found beforehand and are checked again, by their start time,
just before the signal: a pid that was given to a stranger is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil

from chaos.admin import Admin, AdminError
from chaos.substrate import Endpoints, NotRunningError, ReplicaHandle, SubstrateError
from cluster.public import ClusterState, default_run_dir

UP_TIMEOUT_S = 360.0
DOWN_TIMEOUT_S = 90.0
SAME_START_S = 0.5
ENGINE_TITLE = "EngineCore"
REPLICA_TITLE = "ServeReplica:llm"


class LocalSubstrate:
    """Local processes. ``run_dir`` is where the cluster keeps its state."""

    name = "local"

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir or default_run_dir()

    def _state(self) -> ClusterState:
        state = ClusterState.load(self._run_dir)
        if state is None:
            raise NotRunningError(
                f"the local cluster is not running (no state in {self._run_dir}); start it with "
                f"'brownout up --on local', or add --up to let the run do it"
            )
        return state

    async def endpoints(self) -> Endpoints:
        state = self._state()
        found = Endpoints(state.base_url, state.admin_url, state.links_url, state.toxiproxy_url)
        async with Admin(found) as admin:
            try:
                await admin.in_flight()
                await admin.links()
            except AdminError as error:
                raise SubstrateError(
                    f"the local cluster has a state file, but does not answer ({error}); 'brownout down' and "
                    f"'brownout up --on local' start it afresh; its logs are in {state.logs}"
                ) from error
        return found

    async def replicas(self) -> list[ReplicaHandle]:
        async with Admin(await self.endpoints()) as admin:
            links = await admin.replica_links()
        listeners = await asyncio.to_thread(_listeners)
        found = []
        for link in links:
            pid = listeners.get(int(link.upstream.rsplit(":", 1)[1]))
            if pid is None:
                continue  # it has just died; its link is about to go
            family = await asyncio.to_thread(_family, pid)
            if family:
                found.append(ReplicaHandle(link.label, link.name, link.upstream, json.dumps(family)))
        return sorted(found, key=lambda replica: replica.label)

    async def kill(self, replica: ReplicaHandle) -> None:
        for pid, created_at in _processes(replica):
            if _alive(pid, created_at):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        return not any(_alive(pid, created_at) for pid, created_at in _processes(replica))

    async def restore(self, replica: ReplicaHandle) -> None:
        """Nothing: Ray Serve starts another by itself."""

    async def leftovers(self) -> list[str]:
        state = self._state()
        return await asyncio.to_thread(_leftovers, self._run_dir, state)

    async def reachable(self, address: str) -> str:
        return address

    def versions(self) -> dict[str, str]:
        return dict(self._state().versions)

    def settings(self) -> dict[str, Any]:
        state = self._state()
        return {"replicas": state.replicas, "pace": state.pace, "model": state.model}

    async def up(self) -> None:
        await self._cluster("up", UP_TIMEOUT_S)

    async def down(self) -> None:
        await self._cluster("down", DOWN_TIMEOUT_S)

    async def _cluster(self, command: str, timeout_s: float) -> None:
        """Run ``python -m cluster.local``; its progress lines go to this process's standard error."""
        env = {**os.environ, "BROWNOUT_RUN_DIR": str(self._run_dir)}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cluster.local",
            command,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_fileno() else None,
        )
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            raise SubstrateError(f"'cluster.local {command}' did not end within {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(60):
                        await process.wait()
        if code != 0:
            raise SubstrateError(f"'brownout {command} --on local' did not work (exit {code}); see above")


def _has_fileno() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, AttributeError, ValueError):
        return False
    return True


def _listeners() -> dict[int, int]:
    """Return the pid that listens on each TCP port of this machine, as far as this user may know."""
    return {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid is not None
    }


def _family(pid: int) -> list[tuple[int, float]]:
    """Return (pid, start time) of a process and all below it, the process itself first."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    family = []
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            family.append((member.pid, member.create_time()))
    return family


def _processes(replica: ReplicaHandle) -> list[tuple[int, float]]:
    return [(int(pid), float(created_at)) for pid, created_at in json.loads(replica.handle)]


def _alive(pid: int, created_at: float) -> bool:
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created_at) < SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _writes_below(pid: int, folder: str) -> bool:
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(folder):
                return True
    return False


def _leftovers(run_dir: Path, state: ClusterState) -> list[str]:
    """Engines without a replica above them, and replicas beyond the configured number, of this cluster only."""
    folder = str(run_dir.resolve()) + os.sep
    found: list[str] = []
    replicas: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline()) or process.name()
            is_engine, is_replica = ENGINE_TITLE in title, REPLICA_TITLE in title
            if not (is_engine or is_replica) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if not _writes_below(process.pid, folder):
                continue
            if is_replica:
                replicas.append(process.pid)
            elif process.ppid() <= 1 or REPLICA_TITLE not in " ".join(
                psutil.Process(process.ppid()).cmdline()
            ):
                found.append(f"engine process {process.pid} has no replica above it")
    if len(replicas) > state.replicas:
        pids = ", ".join(map(str, sorted(replicas)))
        found.append(f"{len(replicas)} replica processes ({pids}), {state.replicas} are configured")
    return found
