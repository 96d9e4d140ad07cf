"""Real gateways and the real tool as processes of their own, in front of fake replicas: all that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from cluster.gateway.crash_points import VARIABLE
from cluster.public import TOOL_PATH
from tests.fakes.links import FakeLinks
from tests.fakes.replica import Behaviour, FakeReplica
from tests.ports import free_port

LEASE_S = 1.0
_START_S = 60.0


@dataclass
class Process:
    """One process and how to start it again. ``ready_url`` answers 200 once it is up."""

    arguments: list[str]
    ready_url: str
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    """Of its public side, for a gateway."""
    running: asyncio.subprocess.Process | None = None

    async def start(self, **more: str) -> None:
        """Start it and wait until it is ready."""
        environment = {**os.environ, **self.environment, **more}
        with self.log.open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                sys.executable, *self.arguments, env=environment, stderr=log
            )
        async with asyncio.timeout(_START_S), aiohttp.ClientSession() as http:
            while True:
                assert self.running.returncode is None, f"it ended by itself: {self.log.read_text()[-2000:]}"
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(self.ready_url) as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """End it as a crash does."""
        if self.running is not None and self.running.returncode is None:
            self.running.send_signal(signal.SIGKILL)
            await self.running.wait()

    async def dies(self) -> None:
        """Wait until it has killed itself."""
        assert self.running is not None
        async with asyncio.timeout(30):
            assert await self.running.wait() == -signal.SIGKILL


@dataclass
class CrashStand:
    """A stand on one store; gateways are added to it."""

    links: FakeLinks
    replicas: list[FakeReplica]
    tool: Process
    tool_address: str
    store: str
    folder: Path
    gateways: list[Process] = field(default_factory=list)

    def gateway(self) -> Process:
        """Return a gateway that has not been started."""
        port, admin = free_port(), free_port()
        made = Process(
            ["-m", "cluster.gateway"],
            f"http://127.0.0.1:{admin}/readyz",
            self.folder / "gateways.log",
            {
                "BROWNOUT_STORE": self.store,
                "BROWNOUT_STORE_ANSWER_S": "2",
                "BROWNOUT_PORT_LINKS": self.links.url.rsplit(":", 1)[1],
                "BROWNOUT_PORT_GATEWAY": str(port),
                "BROWNOUT_PORT_GATEWAY_ADMIN": str(admin),
                "BROWNOUT_IDEMPOTENCY_LEASE_S": str(LEASE_S),
                # Nothing but deaths is to end a call here, however busy the machine is.
                "BROWNOUT_TOOL_DEADLINE_S": "10",
                "BROWNOUT_HEADER_TIMEOUT_S": "10",
                "BROWNOUT_FIRST_TOKEN_TIMEOUT_S": "20",
                "BROWNOUT_TTFT_OBJECTIVE_S": "20",
            },
        )
        made.url = f"http://127.0.0.1:{port}"
        self.gateways.append(made)
        return made

    async def armed(self, point: str) -> Process:
        """Return a started gateway that kills itself at that point."""
        made = self.gateway()
        await made.start(**{VARIABLE: point})
        return made

    async def effects(self) -> list[dict[str, Any]]:
        """Return the tool's ledger."""
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{self.tool_address}{TOOL_PATH}/ledger") as response,
        ):
            told = await response.json()
        effects: list[dict[str, Any]] = told["effects"]
        return effects


@contextlib.asynccontextmanager
async def crash_stand(
    store: str, folder: Path, *, token_interval_s: float = 0.004
) -> AsyncIterator[CrashStand]:
    """A stand with two replicas and the tool, whose ledger outlives it; everything ends with it."""
    port = free_port()
    tool = Process(
        ["-m", "tests.fakes.real_tool", str(port), str(folder / "ledger")],
        f"http://127.0.0.1:{port}{TOOL_PATH}/healthz",
        folder / "tool.log",
    )
    links = FakeLinks()
    stand = CrashStand(links, [FakeReplica(), FakeReplica()], tool, f"127.0.0.1:{port}", store, folder)
    try:
        await links.start()
        for replica in stand.replicas:
            replica.behaviour = Behaviour(token_interval_s=token_interval_s)
            await replica.start()
        await tool.start()
        names = ((f"replica-{n}.a", replica.address) for n, replica in enumerate(stand.replicas))
        await links.set(names, tool=stand.tool_address)
        yield stand
    finally:
        for process in (*stand.gateways, tool):
            await process.kill()
        for replica in stand.replicas:
            await replica.stop()
        await links.stop()
