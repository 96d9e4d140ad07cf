"""A stand-in for the links service: the list of links, by long poll, and what a test wants it to be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from aiohttp import web

from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL


class FakeLinks:
    """Serves ``GET /links``; every change makes a new version."""

    def __init__(self) -> None:
        self.url = ""
        self.polls = 0
        self._version = 0
        self._links: list[dict[str, str]] = []
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/links", self._get)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def set(
        self,
        replicas: Iterable[tuple[str, str]],
        tool: str | None = None,
        small: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Make the links (name, ``host:port``) of replicas of both models, and the tool's address, the list."""
        links = [_link(name, KIND_REPLICA, address) for name, address in replicas]
        links += [_link(name, KIND_REPLICA_SMALL, address) for name, address in small]
        if tool is not None:
            links.append(_link("tool", "tool", tool))
        async with self._changed:
            self._links = links
            self._version += 1
            self._changed.notify_all()

    async def _get(self, request: web.Request) -> web.Response:
        self.polls += 1
        after, wait_s = int(request.query.get("after", -1)), float(request.query.get("wait_s", 0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self._version > after)
        return web.json_response({"version": self._version, "links": self._links})


def _link(name: str, kind: str, address: str) -> dict[str, str]:
    label = name.split(".", 1)[0]
    return {"name": name, "label": label, "kind": kind, "listen": address, "upstream": address}
