"""How long to wait before a retry: exponential, with full jitter.

Full jitter spreads the retries of calls that failed together over the whole interval, so that they do not
arrive together again. Constants: 50 ms after a transient failure, 1 s after throttling, cap 10 s (AWS SDK
defaults of 2026). :class:`Constant` is what many deploy instead; it is here to be compared with.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from policies.errors import AttemptError, ReplicaBusy


class Backoff(Protocol):
    """Says how long to wait before a retry."""

    def delay_s(self, retry: int, error: AttemptError, rng: random.Random) -> float:
        """Return the wait in seconds; ``retry`` is 0 before the second attempt, ``error`` ended the one before."""
        ...


@dataclass(frozen=True, slots=True)
class FullJitter:
    """``uniform(0, min(cap, base * 2^n))`` before the retry number n, counted from 0.

    A server's ``Retry-After`` is a floor: the wait is that plus the jittered part, because to come earlier
    than a busy server asked, as jitter from 0 would, is to be turned away again.
    """

    base_s: float = 0.05
    throttled_base_s: float = 1.0
    cap_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("base_s", "throttled_base_s", "cap_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")

    def delay_s(self, retry: int, error: AttemptError, rng: random.Random) -> float:
        """Return the wait before a retry, in seconds; ``retry`` is 0 for the first."""
        throttled = isinstance(error, ReplicaBusy) and error.retry_after_s is None
        base = self.throttled_base_s if throttled else self.base_s
        jittered = rng.uniform(0.0, min(self.cap_s, base * 2.0 ** min(retry, 64)))
        return (error.retry_after_s or 0.0) + jittered


@dataclass(frozen=True, slots=True)
class Constant:
    """The same wait before every retry, whatever the server asked for; 0 is an eager retry."""

    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.wait_s >= 0:
            raise ValueError(f"wait_s is {self.wait_s}: it must be at least 0")

    def delay_s(self, retry: int, error: AttemptError, rng: random.Random) -> float:
        """Return the wait before a retry, in seconds."""
        return self.wait_s
