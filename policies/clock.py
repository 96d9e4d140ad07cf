"""Time as the policies see it, so that tests and simulations can supply their own.

Every instant here is monotonic and means nothing outside the process; what leaves the process is stamped
with wall-clock time by whoever sends it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, and the ways to wait for them."""

    def now(self) -> float:
        """Return the present instant in seconds."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait that long."""
        ...

    def timeout(self, delay_s: float | None) -> asyncio.Timeout:
        """Return a context that raises TimeoutError after that long; None never does."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back after that long, unless the handle is cancelled."""
        ...


class SystemClock:
    """The clock of the running event loop; on a loop with virtual time it is virtual too."""

    __slots__ = ()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def timeout(self, delay_s: float | None) -> asyncio.Timeout:
        return asyncio.timeout(delay_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


@dataclass(frozen=True, slots=True)
class Deadline:
    """The instant after which the caller no longer waits; absolute, so that passing it on costs nothing."""

    at: float
    clock: Clock

    @classmethod
    def after(cls, delay_s: float, clock: Clock) -> Deadline:
        """Return the deadline that many seconds from now.

        Raises:
            ValueError: the delay is negative or not a number.
        """
        if not delay_s >= 0:
            raise ValueError(f"delay_s is {delay_s}: a deadline lies at least 0 s ahead")
        return cls(clock.now() + delay_s, clock)

    @classmethod
    def never(cls, clock: Clock) -> Deadline:
        """Return the deadline of a caller who waits for ever."""
        return cls(math.inf, clock)

    def remaining(self) -> float:
        """Return the seconds left: 0 when it has passed, infinity when there is none."""
        return max(0.0, self.at - self.clock.now())

    @property
    def is_set(self) -> bool:
        """Tell whether there is one at all."""
        return self.at != math.inf

    def timeout_s(self) -> float | None:
        """Return the seconds left, or None when there is no deadline."""
        return self.remaining() if self.is_set else None
