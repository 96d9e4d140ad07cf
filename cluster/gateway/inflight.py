"""What is in flight now, call by call and attempt by attempt, and waiting for that to look a certain way.

A fault that is to strike "while three streams run and one call waits for its first token" cannot poll: it
would always come too late. So a waiter is told at the very change that makes its condition true.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from cluster.public import replica_label
from policies.clock import Clock
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    CallEnded,
    Event,
    EventSink,
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
    """A sink that follows the attempts, and the register of live calls."""

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, int], LiveAttempt] = {}
        self._calls: dict[str, LiveCall] = {}
        self._waiters: list[_Waiter] = []
        self.waiting = 0
        """Calls that have no first token yet."""

    # --- attempts ----------------------------------------------------------------------------------------

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

    # --- calls -------------------------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """Return the number of calls whose answer has not ended."""
        return len(self._calls)

    def open(
        self, request_id: str, sink: EventSink, clock: Clock, on_ttft: Callable[[float], None]
    ) -> LiveCall:
        """Register a call. An id that is in flight already gets a suffix, so that no two are mixed up."""
        name, copies = request_id, 1
        while name in self._calls:
            copies += 1
            name = f"{request_id}~{copies}"
        live = LiveCall(self, name, sink, clock, on_ttft)
        self._calls[name] = live
        self.waiting += 1
        return live

    def _close(self, live: LiveCall) -> None:
        del self._calls[live.request_id]

    def describe(self) -> dict[str, Any]:
        """Return the answer of ``GET /admin/inflight``."""
        attempts = [
            {
                "request_id": one.request_id,
                "attempt": one.attempt,
                "replica": one.replica,
                "phase": one.phase,
                "started_at": one.started_at,
            }
            for one in self._attempts.values()
        ]
        return {"at": time.time(), "attempts": attempts, "calls": self.calls}


class LiveCall:
    """A call in flight; leaving the context ends it, with ``outcome`` (``cancelled`` unless it was set)."""

    def __init__(
        self,
        inflight: InFlight,
        request_id: str,
        sink: EventSink,
        clock: Clock,
        on_ttft: Callable[[float], None],
    ) -> None:
        self.request_id = request_id
        self.outcome = "cancelled"
        self._inflight = inflight
        self._sink = sink
        self._clock = clock
        self._on_ttft = on_ttft
        self._arrived_at = clock.now()
        self._waiting = True

    def first_token(self) -> None:
        """The first token is there; only the first time counts."""
        if self._waiting:
            self._waiting = False
            self._inflight.waiting -= 1
            self._on_ttft(self._clock.now() - self._arrived_at)

    def __enter__(self) -> LiveCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._waiting:
            self._waiting = False
            self._inflight.waiting -= 1
        self._inflight._close(self)
        self._sink.emit(CallEnded(self.request_id, self.outcome))


def _names(wanted: str, replica: str) -> bool:
    return wanted in (replica, replica_label(replica))


def _holds(snapshot: Snapshot, streaming: int, awaiting: int) -> bool:
    return len(snapshot.streaming) >= streaming and len(snapshot.awaiting) >= awaiting
