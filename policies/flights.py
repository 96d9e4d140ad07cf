"""Lets one caller do what several want at the same moment; the others wait for what comes of it.

A popular question whose answer has just gone stale would else be computed by everybody who asks before the first
answer is there. The wait is bounded, and a leader that fails or is cancelled leaves its place to the next. One whose
answer is good for nobody else lets the others go: in a row behind one another they would wait for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from types import TracebackType
from typing import Generic, TypeVar

from policies.clock import Clock, SystemClock

T = TypeVar("T")


class Lead(Generic[T]):
    """The place of who does it; leaving the context without :meth:`land` gives the place to the next."""

    def __init__(self, flights: Flights[T], key: Hashable) -> None:
        self._flights = flights
        self._key = key
        self._result: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._disbanded = False

    def land(self, result: T | None) -> None:
        """Give the result to everybody who waits; None gives one of them the place. Only the first time counts."""
        if not self._result.done():
            del self._flights._leads[self._key]
            self._result.set_result(result)

    def disband(self) -> None:
        """Let everybody who waits do it alone: what came of it is no failure, but is for nobody else."""
        self._disbanded = True
        self.land(None)

    def __enter__(self) -> Lead[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.land(None)


class Flights(Generic[T]):
    """What is under way, by key."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._leads: dict[Hashable, Lead[T]] = {}
        self.waiting = 0
        """Callers who wait for what another is doing."""

    def __len__(self) -> int:
        """Return how many keys somebody leads."""
        return len(self._leads)

    async def join(self, key: Hashable, wait_s: float) -> Lead[T] | T | None:
        """Return the lead, where nobody has it; else what the leader found.

        None after ``wait_s`` in all, and where the leader has disbanded: who is told so does it alone, and nobody
        waits for it.
        """
        until = self._clock.now() + wait_s
        while (lead := self._leads.get(key)) is not None:
            left_s = until - self._clock.now()
            if left_s <= 0:
                return None
            self.waiting += 1
            try:
                async with self._clock.timeout(left_s):
                    # shielded: a follower that leaves does not end the flight
                    result = await asyncio.shield(lead._result)
            except TimeoutError:
                return None
            finally:
                self.waiting -= 1
            if result is not None or lead._disbanded:
                return result
        made: Lead[T] = Lead(self, key)
        self._leads[key] = made
        return made
