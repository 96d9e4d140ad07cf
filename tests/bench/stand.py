"""Where a bench finds what it measures: fakes with a gateway before them, or the real cluster.

The fakes need no engine and never tire, so that what is measured is the gateway; the cluster has slots that can be
full, so that what is measured is the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from chaos.waiting import until
from cluster import settings
from cluster.public import KIND_REPLICA, MODEL_NAME, ClusterState
from tests.ports import free_port

READY_BOUND_S = 60.0


class NoStandError(RuntimeError):
    """There is nothing to measure; the text says why."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A gateway and the replicas behind it; URLs are roots, without ``/v1``."""

    gateway: str
    admin: str
    gateway_pid: int
    replicas: tuple[str, ...]
    """Where the links of the replicas listen: the gateway, its peers and a client alone all go through them."""
    model: str
    slots: int
    """Sequences that a replica decodes together."""
    pace: str
    links_port: int = 0
    """Of the fakes' links service."""

    @property
    def callers(self) -> int:
        """As many as fill every slot."""
        return self.slots * len(self.replicas)

    async def set_profile(self, session: aiohttp.ClientSession, profile: str, **more: Any) -> None:
        """Swap in a fresh pipeline."""
        async with session.put(f"{self.admin}/admin/profile", json={"profile": profile, **more}) as response:
            response.raise_for_status()

    @contextlib.asynccontextmanager
    async def keeping_its_profile(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Put the profile back after the block that was there before."""
        async with session.get(f"{self.admin}/admin/profile") as response:
            response.raise_for_status()
            had = await response.json()
        try:
            yield
        finally:
            kept = {key: had[key] for key in ("without", "with", "overrides")}
            await self.set_profile(session, had["profile"], **kept)


@contextlib.asynccontextmanager
async def process(*arguments: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a module of this Python beside the block."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        child.terminate()
        await child.wait()


@contextlib.asynccontextmanager
async def on_fakes(
    session: aiohttp.ClientSession, token_interval_s: float = 0.01, slots: int = 0
) -> AsyncIterator[Stand]:
    """Start three fake replicas in a process, with or without a bound on their slots, and a gateway in another."""
    links = free_port()
    told = ("--token-interval-s", f"{token_interval_s:g}", "--slots", str(slots))
    fakes = ("tests.fakes.stand", "--links-port", str(links), *told)
    async with process(*fakes), gateway_before(session, links) as gateway:
        yield Stand(
            gateway=gateway.url,
            admin=gateway.admin,
            gateway_pid=gateway.pid,
            replicas=await _replicas(session, f"http://127.0.0.1:{links}"),
            model=MODEL_NAME,
            slots=slots or 8,
            pace=f"fakes, a step of {token_interval_s:g} s",
            links_port=links,
        )


@dataclass(frozen=True, slots=True)
class OneGateway:
    """A gateway process; URLs are roots, without ``/v1``."""

    url: str
    admin: str
    pid: int


@contextlib.asynccontextmanager
async def gateway_before(
    session: aiohttp.ClientSession, links_port: int, store: str = "none"
) -> AsyncIterator[OneGateway]:
    """Start a gateway before the replicas that the links service on that port names; ``store`` as in the settings."""
    port, admin_port = free_port(), free_port()
    environment = {
        "BROWNOUT_PORT_LINKS": str(links_port),
        "BROWNOUT_PORT_GATEWAY": str(port),
        "BROWNOUT_PORT_GATEWAY_ADMIN": str(admin_port),
        "BROWNOUT_STORE": store,
    }
    admin = f"http://127.0.0.1:{admin_port}"
    async with process("cluster.gateway", **environment) as child:
        if not await until(partial(_ready, session, admin), READY_BOUND_S, 0.05):
            raise NoStandError(f"the gateway before the fakes was not ready after {READY_BOUND_S:.0f} s")
        yield OneGateway(f"http://127.0.0.1:{port}", admin, child.pid)


@contextlib.asynccontextmanager
async def on_cluster(session: aiohttp.ClientSession) -> AsyncIterator[Stand]:
    """Use the local cluster that runs, or start one and end it after the block.

    Raises:
        NoStandError: it cannot be started.
    """
    was_up = ClusterState.load() is not None
    try:
        if _cluster("up"):
            raise NoStandError("the local cluster cannot be started; it said why")
        state = ClusterState.load()
        pid = next((one.pid for one in state.processes if one.name == "gateway"), None) if state else None
        if state is None or pid is None:
            raise NoStandError(
                "the local cluster has left no state; 'brownout down' and 'brownout up' mend that"
            )
        replicas = await _replicas(session, state.links_url)
        if len(replicas) < state.replicas:
            raise NoStandError(
                f"only {len(replicas)} of {state.replicas} replicas are there; wait for the others"
            )
        slots = settings.load().max_num_seqs
        yield Stand(
            state.gateway_url, state.admin_url, pid, replicas, state.model, slots, f"paced {state.pace}"
        )
    finally:
        if not was_up:
            _cluster("down")


def _cluster(command: str) -> int:
    """Bring it up or down. Nothing else is under way meanwhile; and a cancelled task can still clean up like this."""
    return subprocess.run([sys.executable, "-m", "cluster.local", command], check=False).returncode


async def _ready(session: aiohttp.ClientSession, admin_url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{admin_url}/readyz") as response:
            return response.status == 200
    return False


async def _replicas(session: aiohttp.ClientSession, links_url: str) -> tuple[str, ...]:
    async with session.get(f"{links_url}/links") as response:
        response.raise_for_status()
        listed = (await response.json())["links"]
    found = sorted((one["name"], one["listen"]) for one in listed if one["kind"] == KIND_REPLICA)
    return tuple(f"http://{address}" for _, address in found)
