"""The cluster as processes of this machine, found through the state file that ``cluster.local`` writes.

A replica is the process that listens on its link's upstream port (a Ray worker) and everything below it (its
engine). It is killed by process ids that were found beforehand and are checked again, by their start time,
just before the signal: a pid that was given to a stranger is left alone. Its successor is held until the loss is
reverted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos.admin import Admin, AdminError
from chaos.substrate import (
    Ended,
    Endpoints,
    GatewayHandle,
    NotRunningError,
    ReplicaHandle,
    StorePlace,
    SubstrateError,
)
from chaos.substrates.command import ask_command, run_command
from chaos.substrates.processes import (
    alive,
    family,
    go_on,
    leftovers,
    listeners,
    replica_heads,
    resume,
    stop,
    stopped,
)
from cluster.public import GATEWAY_PROCESS, STORE_FILE, ClusterState, Exported, default_run_dir

UP_TIMEOUT_S = 360.0
DOWN_TIMEOUT_S = 90.0
GATEWAY_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 60.0
SQLITE_URL = "sqlite:///"
LOOK_EVERY_S = 0.2
LOOK_AGAIN_S = 1.0
"""Once a successor is held, another comes only if that one is given up."""


class LocalSubstrate:
    """Local processes. ``run_dir`` is where the cluster keeps its state."""

    name = "local"

    def __init__(self, run_dir: Path | None = None) -> None:
        self._run_dir = run_dir or default_run_dir()
        self._heads: set[int] | None = None
        """The replicas' own processes when they were last listed: whatever else comes is a successor."""
        self._holding: asyncio.Task[None] | None = None

    def _state(self) -> ClusterState:
        state = ClusterState.load(self._run_dir)
        if state is None:
            raise NotRunningError(
                f"the local cluster is not running (no state in {self._run_dir}); start it with "
                f"'brownout up --on local', or add --up to let the run do it"
            )
        if state.processes and not any(alive(record.pid, record.created_at) for record in state.processes):
            raise NotRunningError(
                f"the local cluster of {self._run_dir} has died; 'brownout up --on local' cleans up and starts "
                f"another, or add --up to let the run do it"
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
        pids = await asyncio.to_thread(listeners)
        self._heads = set(await asyncio.to_thread(replica_heads, self._run_dir))
        found = []
        for link in links:
            pid = pids.get(int(link.upstream.rsplit(":", 1)[1]))
            if pid is None:
                continue  # it has just died; its link is about to go
            members = await asyncio.to_thread(family, pid)
            if members:
                found.append(ReplicaHandle(link.label, link.name, link.upstream, json.dumps(members)))
        return sorted(found, key=lambda replica: replica.label)

    async def kill(self, replica: ReplicaHandle) -> None:
        for pid, created_at in _members(replica):
            if alive(pid, created_at):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self._let_go()
        if self._heads is None:
            self._heads = set(await asyncio.to_thread(replica_heads, self._run_dir))
        self._holding = asyncio.create_task(self._hold_successors(self._heads))

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        return not any(alive(pid, created_at) for pid, created_at in _members(replica))

    async def restore(self, replica: ReplicaHandle) -> None:
        """Let the successor start. Ray Serve has begun to start it by itself; it was held since."""
        await self._let_go()
        await asyncio.to_thread(resume, self._run_dir)

    async def freeze(self, replica: ReplicaHandle) -> None:
        engine = list(_engine(replica))
        if not engine:
            raise SubstrateError(
                f"{replica.link} has no engine process that could be frozen; is it starting?"
            )
        for pid in engine:
            stop(pid)

    async def is_frozen(self, replica: ReplicaHandle) -> bool:
        engine = list(_engine(replica))
        return bool(engine) and all(stopped(pid) for pid in engine)

    async def thaw(self, replica: ReplicaHandle) -> None:
        for pid in _engine(replica):
            go_on(pid)

    async def gateways(self) -> list[GatewayHandle]:
        found = [one for one in self._state().processes if one.name == GATEWAY_PROCESS]
        return [
            GatewayHandle(one.name, json.dumps([one.pid, one.created_at]))
            for one in found
            if alive(one.pid, one.created_at)
        ]

    async def kill_gateway(self, gateway: GatewayHandle) -> None:
        pid, created_at = json.loads(gateway.handle)
        if alive(pid, created_at):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def gateway_is_dead(self, gateway: GatewayHandle) -> bool:
        pid, created_at = json.loads(gateway.handle)
        return not alive(pid, created_at)

    async def start_gateway(self, gateway: GatewayHandle) -> None:
        self._state()
        await self._cluster("gateway", GATEWAY_TIMEOUT_S)

    async def configure_gateway(self, settings: Mapping[str, str]) -> None:
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        await self._cluster("gateway", GATEWAY_TIMEOUT_S, *(given or ["--plain"]))

    async def store(self) -> StorePlace | None:
        named = self._exported().environment({}).get("BROWNOUT_STORE", "none")
        if named == "none":
            return None
        if named == "sqlite":
            return StorePlace(file=str(self._run_dir / STORE_FILE))
        return StorePlace(file=named.removeprefix(SQLITE_URL) if named.startswith(SQLITE_URL) else "")

    async def gateway_command(self, module: str, *arguments: str) -> Ended:
        command = [sys.executable, "-m", f"cluster.gateway.{module}", *arguments]
        return await ask_command(command, COMMAND_TIMEOUT_S, env=self._exported().environment(os.environ))

    def _exported(self) -> Exported:
        self._state()
        try:
            return Exported.load(self._run_dir)
        except (OSError, ValueError, TypeError) as error:
            raise SubstrateError(
                f"nobody knows how the gateway of {self._run_dir} was started ({error}); 'brownout down' and "
                f"'brownout up --on local' start everything afresh"
            ) from error

    async def _hold_successors(self, known: set[int]) -> None:
        """Hold the process of every replica that is started from now on, so that the lost one stays lost.

        Where containers are lost their successors come with the revert. Here Ray Serve would start one at once, and its
        start would take a whole core from the survivors, which a lost machine does not do.
        """
        known, pause_s = set(known), LOOK_EVERY_S
        while True:
            for pid in set(await asyncio.to_thread(replica_heads, self._run_dir)) - known:
                stop(pid)
                known.add(pid)
                pause_s = LOOK_AGAIN_S
            await asyncio.sleep(pause_s)

    async def _let_go(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)
            self._holding = None

    async def leftovers(self) -> list[str]:
        state = self._state()
        return await asyncio.to_thread(leftovers, self._run_dir, state.replicas + state.small_replicas)

    async def reachable(self, address: str) -> str:
        return address

    def instance(self) -> str:
        return self._state().run_mark

    def versions(self) -> dict[str, str]:
        return dict(self._state().versions)

    def settings(self) -> dict[str, Any]:
        state = self._state()
        return {"replicas": state.replicas, "pace": state.pace, "model": state.model}

    async def up(self) -> None:
        await self._cluster("up", UP_TIMEOUT_S)

    async def down(self) -> None:
        await self._cluster("down", DOWN_TIMEOUT_S)

    async def _cluster(self, command: str, timeout_s: float, *arguments: str) -> None:
        env = {**os.environ, "BROWNOUT_RUN_DIR": str(self._run_dir)}
        await run_command([sys.executable, "-m", "cluster.local", command, *arguments], timeout_s, env=env)


def _engine(replica: ReplicaHandle) -> Iterator[int]:
    """Yield what runs below the replica's own process, which is the HTTP server: its engine."""
    return (pid for pid, created_at in _members(replica)[1:] if alive(pid, created_at))


def _members(replica: ReplicaHandle) -> list[tuple[int, float]]:
    return [(int(pid), float(created_at)) for pid, created_at in json.loads(replica.handle)]
