"""A wall between tools: each method has so many calls under way and no more, so that a slow one fills only its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cluster.gateway.tools import ToolMethod


class Bulkheads:
    """A counter for each method. Waiting for a place is the caller's own time: bound it with a time-out."""

    def __init__(self, methods: Mapping[str, ToolMethod]) -> None:
        self._places = {name: asyncio.Semaphore(method.at_once) for name, method in methods.items()}

    def place(self, method: str) -> asyncio.Semaphore:
        """Return what is entered (``async with``) for as long as the method is asked."""
        return self._places[method]
