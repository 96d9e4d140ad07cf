"""The audit: nothing is done for a request before the store has the record of who asks and what for.

Each gateway process appends to a hash chain of its own, so that no two of them wait for one another. One task appends;
what arrives while it writes goes out together with the next write. The end of the chain moves only when a write is
known to have been done; after one of which nobody can tell, the store is asked where the chain ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

from sqlalchemy.exc import IntegrityError

from cluster.gateway.audit_chain import Batch, Chain, Entry
from cluster.gateway.audit_record import (
    CLOSE,
    OPEN,
    REFUSALS,
    Closing,
    Opening,
    closing_body,
    opening_body,
)
from cluster.gateway.store.store import Store, StoreUnavailable

__all__ = ["Audit", "Closing", "Opened", "Opening"]

Opened = Entry
"""An open record that the store has; it is what :meth:`Audit.close` wants."""

_LOG = logging.getLogger(__name__)
_GROUP: Final = 256
"""Records that are written together at most."""
_AGAIN_S: Final = 1.0
"""Time between two attempts while the store is away and nobody waits."""
_LINGER_S: Final = 0.05
"""How long what nobody waits for may wait for company: a closing then shares its flush with the next opening."""
_REFUSAL_WAIT_S: Final = 1.0
"""How long a refusal waits for its record. The record is kept if it takes longer; nothing was done that needs it."""
_SUM_S: Final = 1.0
_MINUTE_S: Final = 60.0
_UNSURE_MOST: Final = 16
"""Writes with an unknown outcome after which a chain is left as it is and another begun."""


class Audit:
    """One process's chain. Make it where an event loop runs, and end it with :meth:`aclose`.

    Args:
        refusals_a_minute: of requests without a valid key: that many get records of their own in a minute, the rest
            is summed up, so that who has no key cannot fill the disk.
        most_waiting: records that wait for a store that is away, beyond which refusals of any kind are summed up.
            (Closings are not: there are as many as requests were in flight.)
        now: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        *,
        refusals_a_minute: int = 60,
        most_waiting: int = 10_000,
        now: Callable[[], float] = time.time,
        about: dict[str, Any] | None = None,
    ) -> None:
        self._store = store
        self._refusals_a_minute = refusals_a_minute
        self._most_waiting = most_waiting
        self._now = now
        self._chain = Chain(about=process() if about is None else about)
        self._waiting: list[Entry] = []
        self._unsure: list[Batch] = []
        """Writes that follow the end of the chain as it is known, and may have been done after all."""
        self._look = False
        """The store must be asked for the end of the chain before anything is appended."""
        self._away = False
        self._ending = False
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        """Wakes the one that appends."""
        self._task: asyncio.Task[None] | None = None
        self._minute_began = 0.0
        self._in_this_minute = 0
        self._sum: Counter[str] = Counter()
        self._sum_began = 0.0
        self._sum_timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Return the number of records that are not known to be in the store."""
        return len(self._waiting)

    @property
    def chain(self) -> str:
        """Return the name of the chain."""
        return self._chain.id

    async def open(self, opening: Opening) -> Opened:
        """Record that a request begins; nothing may be done for it before this returns.

        Raises:
            StoreUnavailable: there is no record, so the request must be refused. That it was is recorded when the
                store is back.
        """
        if self._ending:
            raise StoreUnavailable("the gateway is ending: no request is begun")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = opening_body(opening, self._now())
        entry = Entry(OPEN, opening.request_id, body, waiter=waiter, kept=False)
        self._put(entry, urgent=True)
        try:
            await waiter
        except asyncio.CancelledError:
            self._give_up(entry, Closing("cancelled", reason="client_left"))
            raise
        return entry

    def close(self, opened: Opened, closing: Closing) -> None:
        """Record how a request ended. It is only queued, and kept until the store has it."""
        body = closing_body(closing, self._now())
        self._put(Entry(CLOSE, opened.request_id, body, opened=opened))

    async def refused(self, opening: Opening, closing: Closing) -> None:
        """Record a request that was refused before anything was done: both records in one write.

        Waits for the store, but not for long: a refusal is told to the caller whether the store is there or not.
        """
        written = self.note_refused(opening, closing)
        if written is not None and not self._away:
            await asyncio.wait((written,), timeout=_REFUSAL_WAIT_S)

    def note_refused(self, opening: Opening, closing: Closing) -> asyncio.Future[None] | None:
        """Do as :meth:`refused` without waiting; return what says that it is written, None where it is summed up."""
        if not self._has_records_of_its_own(bool(opening.key_id)):
            self._sum_up(closing)
            return None
        now = self._now()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        opened = Entry(OPEN, opening.request_id, opening_body(opening, now))
        closed = closing_body(closing, now)
        self._put(opened)
        self._put(
            Entry(CLOSE, opening.request_id, closed, opened=opened, waiter=written), urgent=not self._away
        )
        return written

    async def looked(self, opening: Opening, closing: Closing) -> None:
        """Record a request that only reads, before it is answered.

        Without a key, those that are too many are summed up like refusals.

        Raises:
            StoreUnavailable: there is no record, so the request must be refused. That it was is recorded later.
        """
        if self._has_records_of_its_own(bool(opening.key_id)):
            self.close(await self.open(opening), closing)
        else:
            self._sum_up(closing)

    async def aclose(self, within_s: float = 5.0) -> None:
        """Write what still waits, as far as the store lets us within that time; safe twice."""
        self._ending = True
        self._write_sum()
        if self._task is None:
            return
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._task)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting:
            _LOG.error("%d audit records are lost: the store did not take them", len(self._waiting))

    # --- refusals that are summed up ---------------------------------------------------------------------

    def _has_records_of_its_own(self, has_key: bool) -> bool:
        if len(self._waiting) >= self._most_waiting:
            return False
        if has_key:
            return True
        now = self._now()
        if not 0 <= now - self._minute_began < _MINUTE_S:
            self._minute_began, self._in_this_minute = now, 0
        self._in_this_minute += 1
        return self._in_this_minute <= self._refusals_a_minute

    def _sum_up(self, closing: Closing) -> None:
        if not self._sum:
            self._sum_began = self._now()
        self._sum[f"{closing.status or 0} {closing.reason or closing.outcome}"] += 1
        if self._sum_timer is None and not self._ending:
            self._sum_timer = asyncio.get_running_loop().call_later(_SUM_S, self._write_sum)

    def _write_sum(self) -> None:
        if self._sum_timer is not None:
            self._sum_timer.cancel()
            self._sum_timer = None
        if not self._sum:
            return
        if self._away and not self._ending:  # it goes on being one sum until the store is back
            self._sum_timer = asyncio.get_running_loop().call_later(_SUM_S, self._write_sum)
            return
        body = {"at": round(self._now(), 6), "since": round(self._sum_began, 6), "counts": dict(self._sum)}
        self._sum.clear()
        self._put(Entry(REFUSALS, "", body))

    # --- the one that appends ----------------------------------------------------------------------------

    def _put(self, entry: Entry, *, urgent: bool = False) -> None:
        self._waiting.append(entry)
        loop = asyncio.get_running_loop()
        if urgent:
            self._wake.set()
        elif self._timer is None:
            self._timer = loop.call_later(_AGAIN_S if self._away else _LINGER_S, self._wake.set)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="audit")

    def _give_up(self, entry: Entry, closing: Closing) -> None:
        """Nobody waits for this opening any more: forget it, or close it as soon as it is known to be written."""
        if entry.written:
            self.close(entry, closing)
        elif entry.seq < 0 and entry in self._waiting:
            self._waiting.remove(entry)
        else:
            entry.closing = closing

    async def _run(self) -> None:
        while self._waiting or not self._ending:
            if not self._ending:
                await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if len(self._waiting) > _GROUP:
                self._wake.set()
            try:
                await self._append()
                self._away = False
            except Exception as error:
                if not isinstance(error, StoreUnavailable):
                    _LOG.exception("audit records could not be written")
                    self._look = True
                elif not self._away:
                    _LOG.warning("no request can be recorded, so all are refused: %s", error)
                self._away = True
                self._refuse(error)
                await self._pause()

    async def _pause(self) -> None:
        """Let the store come back, unless somebody is in a hurry."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN_S):
                await self._wake.wait()
        if self._waiting:
            self._wake.set()

    async def _append(self) -> None:
        """Write what waits, as one.

        Raises:
            StoreUnavailable: it was not done, or nobody can tell.
        """
        if self._look:
            await self._find_the_end()
        entries = self._waiting[:_GROUP]
        if not entries:
            return
        batch = self._chain.seal(entries, self._now())
        try:
            await self._store.write(batch.insert)
        except IntegrityError:  # one of those writes of which nobody could tell has been done meanwhile
            end, self._look = self._chain.end, True
            await self._find_the_end()
            if self._chain.end == end:
                self._begin_another()
        except StoreUnavailable as error:
            self._look = True
            if error.maybe_done:
                self._unsure.append(batch)
            raise
        else:
            self._landed(batch)

    async def _find_the_end(self) -> None:
        """Ask the store where the chain ends, and take note of what has been written.

        A store that does not have the end that it once had gets a new chain, which names the lost end.
        """
        last = await self._store.read(self._chain.last)
        done = next((batch for batch in self._unsure if batch.end == last), None)
        if done is not None:
            self._landed(done)
        elif last != self._chain.end or len(self._unsure) >= _UNSURE_MOST:
            self._begin_another()
        self._look = False

    def _begin_another(self) -> None:
        _LOG.error(
            "audit chain %s does not end in the store where it should, at %s; another one is begun",
            self._chain.id,
            self._chain.end,
        )
        self._chain = Chain(about=self._chain.about, after=self._chain.end)
        self._unsure.clear()

    def _landed(self, batch: Batch) -> None:
        """The batch stands in the store: no other that follows the same record can any more."""
        self._chain.end = batch.end
        self._unsure.clear()
        self._look = False
        for entry, seq in zip(batch.entries, batch.places, strict=True):
            entry.chain, entry.seq, entry.written = self._chain.id, seq, True
        self._waiting = [entry for entry in self._waiting if not entry.written]
        for entry in batch.entries:
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_result(None)
            if entry.closing is not None:
                self.close(entry, entry.closing)

    def _refuse(self, error: Exception) -> None:
        """Tell everybody who waits for an opening that there is none; that they were refused is recorded later."""
        maybe_done = getattr(error, "maybe_done", False)
        for entry in [entry for entry in self._waiting if not entry.kept]:
            if entry.closing is None:
                entry.closing = Closing("refused", status=503, reason="audit_unavailable")
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_exception(StoreUnavailable(str(error), maybe_done=maybe_done))
            entry.kept = self._has_records_of_its_own("key_id" in entry.body)
            if not entry.kept:
                self._waiting.remove(entry)
                self._sum_up(entry.closing)


def process() -> dict[str, Any]:
    """Return what the first record of a chain says of this process."""
    try:
        version = metadata.version("brownout")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"host": platform.node(), "pid": os.getpid(), "version": version}
