"""Runs a registry and its API on one address, as a process or inside a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from cluster.linkproxy.api import build_app
from cluster.linkproxy.registry import Registry

_LAST_ANSWERS_S: Final = 1.0


@contextlib.asynccontextmanager
async def serving(host: str, port: int, seed: int | None = None) -> AsyncIterator[str]:
    """Serve for the length of the block; gives the URL of the API. Port 0 takes a free one.

    Raises:
        OSError: the address cannot be used.
    """
    registry = Registry(seed)
    runner = web.AppRunner(build_app(registry), access_log=None, shutdown_timeout=_LAST_ANSWERS_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        yield f"http://{host}:{bound[1]}"
    finally:
        registry.stop()
        await runner.cleanup()
        await asyncio.sleep(0)  # let aborted sockets close
