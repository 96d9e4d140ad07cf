"""Faults of the tool that a test switches on: slow, failing, hung, or "effect done, answer lost"."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cluster.tool.jsonrpc import Method, RpcError

INJECTED_ERROR = -32000


class Faults(BaseModel):
    """What is in force; the default is nothing. ``methods`` empty means every method."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    latency_s: float = Field(default=0.0, ge=0, le=3600)
    """Time that passes before the method runs."""
    error_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of calls that fail before they have an effect; evenly spread, not drawn by lot."""
    hang: bool = False
    """Calls wait, without effect, until this fault is taken away or the caller leaves."""
    lose_answer: bool = False
    """The method runs, then the connection is cut instead of answered."""
    methods: frozenset[str] = frozenset()

    def concerns(self, method: str) -> bool:
        """Tell whether the faults hit calls of this method."""
        return not self.methods or method in self.methods


class AnswerLost(Exception):
    """The effect is done and the caller must not hear of it."""


Sleep = Callable[[float], Awaitable[None]]


class Control:
    """Holds the faults and wraps methods so that they suffer them."""

    def __init__(self, sleep: Sleep = asyncio.sleep) -> None:
        self._sleep = sleep
        self._faults = Faults()
        self._changed = asyncio.Event()
        self._owed_errors = 0.0

    @property
    def faults(self) -> Faults:
        """What is in force."""
        return self._faults

    def set(self, faults: Faults) -> None:
        """Replace the faults; calls that hang under the old ones look at the new ones."""
        self._faults = faults
        self._owed_errors = 0.0
        self._changed.set()
        self._changed = asyncio.Event()

    def wrap(self, name: str, method: Method) -> Method:
        """Return the method as it behaves under the faults of the moment."""

        async def faulty(params: Any) -> Any:
            if self._faults.concerns(name) and self._faults.latency_s > 0:
                await self._sleep(self._faults.latency_s)
            while self._faults.hang and self._faults.concerns(name):
                await self._changed.wait()
            faults = self._faults
            if not faults.concerns(name):
                return await method(params)
            if self._error_is_due(faults.error_rate):
                raise RpcError(INJECTED_ERROR, "Provider error", "injected by the test control")
            result = await method(params)
            if faults.lose_answer:
                raise AnswerLost(name)
            return result

        return faulty

    def _error_is_due(self, rate: float) -> bool:
        self._owed_errors += rate
        if self._owed_errors < 1 - 1e-9:
            return False
        self._owed_errors -= 1
        return True
