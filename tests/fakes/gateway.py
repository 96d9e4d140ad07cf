"""A whole gateway on loopback, in front of fake replicas: the real applications, servers and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import uvicorn
from starlette.types import ASGIApp

from cluster.gateway.admin import Admin
from cluster.gateway.app import public_app
from cluster.gateway.jobs_service import run_jobs
from cluster.gateway.service import Gateway
from cluster.gateway.state import open_state
from cluster.gateway.store.sqlite import SqliteStore, sqlite_engine
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import METADATA
from cluster.gateway.tokens import TokenCounter
from cluster.gateway.upstream import new_session
from cluster.model.tokenizer import CHAT_TEMPLATE
from cluster.settings import Settings
from tests.fakes.links import FakeLinks
from tests.fakes.replica import FakeReplica


@dataclass
class Rig:
    """Everything that a gateway test needs."""

    gateway: Gateway
    url: str
    admin_url: str
    http: aiohttp.ClientSession
    links: FakeLinks
    replicas: list[FakeReplica]
    closing: asyncio.Event
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """Return an official client that does not retry, unless it is told to."""
        options = {"max_retries": 0, "timeout": 20.0, **options}
        client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", **options)
        self.clients.append(client)
        return client

    async def profile(self, profile: str, *without: str, **overrides: float) -> None:
        """Change the profile through the admin API."""
        body = {"profile": profile, "without": list(without), "overrides": overrides}
        async with self.http.put(f"{self.admin_url}/admin/profile", json=body) as response:
            assert response.status == 200, await response.text()

    async def announce(self, *replicas: tuple[str, FakeReplica]) -> None:
        """Let discovery find exactly these replicas, and wait until the gateway knows."""
        await self.links.set((name, replica.address) for name, replica in replicas)
        await self.until(lambda: [r.name for r in self.gateway.fleet.replicas] == [n for n, _ in replicas])

    async def small(self, count: int = 1) -> list[FakeReplica]:
        """Add replicas of the smaller model beside those that are there, and wait until the gateway knows."""
        first, fleet = self.replicas[0], self.gateway.fleet.replicas
        added = [FakeReplica(first.tokenizer) for _ in range(count)]
        for replica in added:
            await replica.start()
            self.replicas.append(replica)
        small = [(f"small-{n}.b", replica.address) for n, replica in enumerate(added)]
        await self.links.set([(one.name, one.address) for one in fleet], small=small)
        await self.until(lambda: len(self.gateway.small.fleet.replicas) == count)
        return added

    async def until(self, condition: Any, timeout_s: float = 10.0) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        """Wait until nothing is in flight anywhere: calls, attempts, work, and at the replicas."""
        gateway = self.gateway
        await self.until(
            lambda: (
                len(gateway.calls) == 0
                and gateway.calls.waiting == 0
                and not gateway.inflight.attempts
                and gateway.ledger.total.tokens == 0
                and gateway.ledger.total.attempts == 0
                and all(replica.running == 0 for replica in self.replicas)
            )
        )

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the gateway's events with one of these names."""
        return [event for event in self.gateway.events.after(0).events if event["event"] in names]


def sqlite_store(path: Path) -> SqliteStore:
    """Return a store in that file, with all tables."""
    path.touch()
    engine = sqlite_engine(path)
    METADATA.create_all(engine)
    engine.dispose()
    return SqliteStore(path)


@contextlib.asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """The application behind a real server on a free port.

    The server's parts are driven by hand, because its own start and end sleep in steps of 0.1 s.
    """
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)  # so that a client can fail to keep up
    config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off", ws="none")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[sock])
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        if server.server_state.tasks:
            _, late = await asyncio.wait(server.server_state.tasks, timeout=5)
            assert not late, "a request did not end with the test"


@contextlib.asynccontextmanager
async def rig(
    replicas: int = 2,
    *,
    counter: TokenCounter | None = None,
    tokenizer: Any = None,
    seed: int = 1,
    store: Path | Store | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A gateway in front of that many fake replicas, all of them announced.

    ``store`` is an open store with the project's tables, or the path of an SQLite file that may not exist yet; without
    one the gateway keeps nothing. With a ``tokenizer`` the replicas choose each token by those before it, and the
    gateway knows it too.
    """
    fakes = [FakeReplica(tokenizer) for _ in range(replicas)]
    if counter is None and tokenizer is not None:
        counter = TokenCounter(tokenizer, CHAT_TEMPLATE)
    links = FakeLinks()
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            await fake.start()
            stack.push_async_callback(fake.stop)
        await links.start()
        stack.push_async_callback(links.stop)
        configured = Settings(port_links=int(links.url.rsplit(":", 1)[1]), **settings)
        session = await stack.enter_async_context(new_session())
        state = await open_state(configured, sqlite_store(store) if isinstance(store, Path) else store)
        stack.push_async_callback(state.aclose)
        gateway = Gateway(
            configured, session, counter or TokenCounter(), rng=random.Random(seed), state=state
        )
        closing = asyncio.Event()
        admin_url = await stack.enter_async_context(listening(Admin(gateway, closing).app()))
        url = await stack.enter_async_context(listening(public_app(gateway)))
        for part in (gateway.discovery.run(), run_jobs(gateway)):
            stack.push_async_callback(_end, asyncio.create_task(part))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Rig(gateway, url, admin_url, http, links, fakes, closing)
        await made.announce(*((f"replica-{n}.a", fake) for n, fake in enumerate(fakes)))
        try:
            yield made
        finally:
            closing.set()
            for client in made.clients:
                await client.close()
            for replica in made.replicas[replicas:]:
                await replica.stop()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
