"""A stand-in for the JSON-RPC tool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from cluster.public import TOOL_PATH


class FakeTool:
    """Answers ``get_price``; ``gate`` makes it hang, ``failure`` is its error, ``lose_answer`` cuts it off.

    ``price`` is what it costs.
    """

    def __init__(self) -> None:
        self.address = ""
        self.calls: list[dict[str, Any]] = []
        self.left_early = 0
        self.called = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.failure: dict[str, Any] | None = None
        self.lose_answer = False
        self.price = "123.45"

    async def handle(self, request: web.Request) -> web.Response:
        message = await request.json()
        self.calls.append(message)
        self.called.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.left_early += 1
                raise
        if self.lose_answer:
            assert request.transport is not None
            request.transport.abort()
        head = {"jsonrpc": "2.0", "id": message["id"]}
        if self.failure is not None:
            return web.json_response({**head, "error": self.failure})
        return web.json_response({**head, "result": {"symbol": "BTC", "price": self.price}})


@contextlib.asynccontextmanager
async def fake_tool() -> AsyncIterator[FakeTool]:
    """A running tool, stopped at the end."""
    tool = FakeTool()
    app = web.Application()
    app.router.add_post(TOOL_PATH, tool.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    tool.address = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    try:
        yield tool
    finally:
        await runner.cleanup()
