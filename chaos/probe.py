"""One question over a link, to prove from outside what a fault does to it."""

from __future__ import annotations

import asyncio
import time

import aiohttp


async def answered_after_s(url: str, within_s: float, *, status: int | None = None) -> float | None:
    """Return how long the answer took, or None when none came in time, or one with another ``status``."""
    began = time.monotonic()
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession() as session,
            session.get(url) as response,
        ):
            await response.read()
            return time.monotonic() - began if status in (None, response.status) else None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
