"""A fault in force: on disk before it is injected, and taken back whatever happens, at the latest by its limit."""

from __future__ import annotations

import asyncio
from types import TracebackType

from chaos.faults.base import Fault
from chaos.undo import UndoEntry, UndoLog

REVERT_TIMEOUT_S = 60.0


class InForce:
    """Context manager around one resolved fault. Leaving it reverts the fault, on cancellation too.

    Args:
        limit_s: seconds after which the fault is reverted without anybody asking.
    """

    def __init__(self, fault: Fault, undo: UndoLog, substrate: str, limit_s: float) -> None:
        self.fault = fault
        self.expired = False
        """Whether the limit and not the caller ended the fault."""
        self.reverted = asyncio.Event()
        """Set when the fault is not in force any more."""
        self._undo = undo
        self._substrate = substrate
        self._limit_s = limit_s
        self._entry: UndoEntry | None = None
        self._timer: asyncio.Task[None] | None = None
        self._reverting = asyncio.Lock()

    async def __aenter__(self) -> InForce:
        self._entry = self._undo.add(
            self.fault.kind, self._substrate, self.fault.target, self.fault.undo_data()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.revert()

    async def inject(self) -> None:
        """Inject it and start its time limit."""
        self._timer = asyncio.create_task(self._expire())
        await self.fault.inject()

    async def _expire(self) -> None:
        await asyncio.sleep(self._limit_s)
        self._timer = None
        self.expired = True
        await self.revert()

    async def revert(self) -> None:
        """Take it back and forget its entry; does nothing the second time. A failure keeps the entry for ``heal``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._reverting:
            if self._entry is None:
                return
            async with asyncio.timeout(REVERT_TIMEOUT_S):
                await self.fault.revert()
            self._undo.remove(self._entry)
            self._entry = None
            self.reverted.set()
