"""The attempts that are in flight now, and waiting for them to look a certain way.

A fault that is to strike "while three streams run and one call waits for its first token" cannot poll: it
would always come too late. So a waiter is told at the very change that makes its condition true.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from cluster.public import replica_label
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    Event,
)

HEADERS: Final = "headers"
FIRST_TOKEN: Final = "first_token"
STREAMING: Final = "streaming"


@dataclass(slots=True)
class LiveAttempt:
    """One attempt in flight; ``phase`` is what it waits for, or ``streaming``."""

    request_id: str
    attempt: int
    replica: str
    phase: str
    started_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one replica holds at one instant: request ids by phase."""

    replica: str
    at: float
    awaiting: list[str]
    streaming: list[str]


@dataclass(frozen=True, slots=True)
class _Waiter:
    replica: str
    streaming: int
    awaiting: int
    future: asyncio.Future[Snapshot]


class InFlight:
    """A sink that follows the attempts."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, int], LiveAttempt] = {}
        self._waiters: list[_Waiter] = []

    def emit(self, event: Event) -> None:
        """Follow one event."""
        if isinstance(event, AttemptStarted):
            key = (event.request_id, event.attempt)
            self._attempts[key] = LiveAttempt(*key, event.replica, HEADERS, time.time())
        elif isinstance(event, AttemptHeaders):
            self._attempts[event.request_id, event.attempt].phase = FIRST_TOKEN
        elif isinstance(event, AttemptFirstToken):
            self._attempts[event.request_id, event.attempt].phase = STREAMING
        elif isinstance(event, AttemptEnded):
            del self._attempts[event.request_id, event.attempt]
        else:
            return
        if self._waiters:
            self._tell(event.replica)

    @property
    def attempts(self) -> list[LiveAttempt]:
        """Return the attempts in flight, oldest first."""
        return list(self._attempts.values())

    def snapshot(self, replica: str) -> Snapshot:
        """Return what a replica, named by its link, holds now."""
        held = [one for one in self._attempts.values() if one.replica == replica]
        return Snapshot(
            replica,
            time.time(),
            awaiting=[one.request_id for one in held if one.phase != STREAMING],
            streaming=[one.request_id for one in held if one.phase == STREAMING],
        )

    async def until(
        self, replica: str, *, streaming: int, awaiting: int, timeout_s: float
    ) -> Snapshot | None:
        """Return the first snapshot with at least that many in each phase; None when it never came to it.

        ``replica`` is a link's name, or a label, which matches every incarnation.
        """
        for name in {one.replica for one in self._attempts.values()} | {replica}:
            if _names(replica, name) and _holds(found := self.snapshot(name), streaming, awaiting):
                return found
        waiter = _Waiter(replica, streaming, awaiting, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.future
        except TimeoutError:
            return None
        finally:
            self._waiters.remove(waiter)

    def _tell(self, replica: str) -> None:
        found: Snapshot | None = None
        for waiter in self._waiters:
            if waiter.future.done() or not _names(waiter.replica, replica):
                continue
            found = found or self.snapshot(replica)
            if _holds(found, waiter.streaming, waiter.awaiting):
                waiter.future.set_result(found)


def _names(wanted: str, replica: str) -> bool:
    return wanted in (replica, replica_label(replica))


def _holds(snapshot: Snapshot, streaming: int, awaiting: int) -> bool:
    return len(snapshot.streaming) >= streaming and len(snapshot.awaiting) >= awaiting
