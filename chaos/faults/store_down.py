"""The store cannot be used: its link is cut, or another process holds the file so that nobody can write to it.

Where the store is PostgreSQL the link ``store`` is disabled at the proxy: live connections close and new ones are
refused. A file has no link, so this process takes SQLite's own lock on it and keeps it; the lock ends with the process,
whatever ends that. Either way nothing can be recorded that must be, which is what the fault is about. Proven: the
link is disabled, or a second writer is turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.links import LinkFaults
from chaos.names import require
from chaos.substrate import StorePlace

TARGET: Final = "store"
LOCK_WITHIN_S: Final = 10.0
"""The gateway's own transactions take milliseconds; the lock is had between two of them."""


class StoreDown:
    """Makes the store unusable until it is reverted."""

    kind: ClassVar[str] = "store_down"
    loses_replica: ClassVar[bool] = False
    target = TARGET

    def __init__(self, context: FaultContext, place: StorePlace) -> None:
        self._context = context
        self._place = place
        self._lock: sqlite3.Connection | None = None

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> StoreDown:
        checked_settings(cls.kind, settings, {})
        require("target", target, [TARGET])
        place = await context.substrate.store()
        if place is None:
            raise FaultError("store_down: the gateway runs without a store (BROWNOUT_STORE=none)")
        if not place.link and not place.file:
            raise FaultError("store_down: the store is a server without a link in front of it")
        if place.link:
            async with LinkFaults(context.endpoints.toxiproxy_url) as proxies:
                require("link", place.link, await proxies.links())
        return cls(context, place)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> StoreDown:
        return cls(context, StorePlace(**data))

    def undo_data(self) -> dict[str, Any]:
        return {"link": self._place.link, "file": self._place.file}

    async def inject(self) -> None:
        if self._place.link:
            await self._enable(False)
        else:
            self._lock = await asyncio.to_thread(_locked, self._place.file, LOCK_WITHIN_S)

    async def verify(self) -> Proof:
        if self._place.link:
            async with LinkFaults(self._context.endpoints.toxiproxy_url) as proxies:
                enabled = (await proxies.links()).get(self._place.link)
            return Proof(enabled is False, {"link": self._place.link, "enabled": enabled})
        try:
            second = await asyncio.to_thread(_locked, self._place.file, 0.0)
        except FaultError as error:
            return Proof(True, {"file": self._place.file, "second_writer": str(error)})
        second.close()
        return Proof(False, {"file": self._place.file, "second_writer": "could write"})

    async def revert(self) -> None:
        if self._place.link:
            await self._enable(True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _enable(self, enabled: bool) -> None:
        async with LinkFaults(self._context.endpoints.toxiproxy_url) as proxies:
            await proxies.set_enabled(self._place.link, enabled)


def _locked(file: str, wait_s: float) -> sqlite3.Connection:
    """Return a connection that holds the file's lock for writing until it is closed.

    Raises:
        FaultError: another has it all the time.
    """
    connection = sqlite3.connect(
        f"file:{file}?mode=rw", uri=True, timeout=wait_s, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        raise FaultError(f"store_down: {file} cannot be locked: {error}") from error
    return connection
