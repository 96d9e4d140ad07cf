"""Waiting for an observed condition within a bound: the only way in which this package waits for the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(
    observe: Callable[[], Awaitable[T | None]], bound_s: float, interval_s: float = 0.1
) -> T | None:
    """Call ``observe`` until it returns something true, and return that; None when ``bound_s`` has passed.

    At least one observation is made. An observation under way at the bound is cut off.
    """
    ends_at = time.monotonic() + bound_s
    while True:
        left_s = ends_at - time.monotonic()
        try:
            async with asyncio.timeout(max(left_s, 0.05)):
                seen = await observe()
        except TimeoutError:
            seen = None
        if seen:
            return seen
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            return None
        await asyncio.sleep(min(interval_s, left_s))


async def sleep_until(at: float) -> None:
    """Sleep until ``time.time()`` is ``at``; returns at once when that has passed."""
    await asyncio.sleep(max(0.0, at - time.time()))
