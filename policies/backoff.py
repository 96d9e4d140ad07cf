"""How long to wait before a retry: exponential, with full jitter.

Full jitter spreads the retries of calls that failed together over the whole interval, so that they do not
arrive together again. Constants: 50 ms after a transient failure, 1 s after throttling, cap 10 s (AWS SDK
defaults of 2026).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from policies.errors import AttemptError, ReplicaBusy


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
