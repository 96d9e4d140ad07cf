"""A Toxiproxy one of whose proxies is held up by its upstream, with the locks of the Go server.

There, disabling such a proxy waits for the dial in its accept loop; deleting it waits likewise, while it holds
the lock that every other creation needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web


class StuckToxiproxy:
    """Proxies by name, without any TCP; those named in ``stuck`` cannot be stopped until they are taken out."""

    def __init__(self) -> None:
        self.url = ""
        self.port = 0
        self.proxies: dict[str, dict[str, Any]] = {}
        self.stuck: set[str] = set()
        self.stops_tried = 0
        self._all = asyncio.Lock()
        self._each: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[StuckToxiproxy]:
        app = web.Application()
        app.router.add_get("/proxies", self._list)
        app.router.add_post("/proxies", self._create)
        app.router.add_get("/proxies/{name}", self._show)
        app.router.add_patch("/proxies/{name}", self._update)
        app.router.add_delete("/proxies/{name}", self._delete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            self.stuck.clear()
            await runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(self.proxies)

    async def _create(self, request: web.Request) -> web.Response:
        proxy = await request.json()
        async with self._all:
            if proxy["name"] in self.proxies:
                return web.json_response({"error": "proxy already exists", "status": 409}, status=409)
            self.proxies[proxy["name"]] = proxy
        return web.json_response(proxy, status=201)

    async def _show(self, request: web.Request) -> web.Response:
        proxy = self.proxies.get(request.match_info["name"])
        return web.json_response(proxy or {"error": "proxy not found"}, status=200 if proxy else 404)

    async def _update(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.proxies:
            return web.json_response({"error": "proxy not found"}, status=404)
        await self._stop(name)
        return web.json_response(self.proxies.get(name))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        async with self._all:
            if name not in self.proxies:
                return web.json_response({"error": "proxy not found"}, status=404)
            await self._stop(name)
            del self.proxies[name]
        return web.Response(status=204)

    async def _stop(self, name: str) -> None:
        self.stops_tried += 1
        async with self._each.setdefault(name, asyncio.Lock()):
            while name in self.stuck:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
