"""Times that grow with each repetition and are spread by chance: for what is left alone, and for who is sent away."""

from __future__ import annotations

import math
import random

_MOST_DOUBLINGS = 32


def doubled_s(base_s: float, most_s: float, times: int) -> float:
    """Return ``base_s`` doubled so many times, at most ``most_s``."""
    growth: float = 2.0 ** min(times, _MOST_DOUBLINGS)
    return min(most_s, base_s * growth)


def spread_s(time_s: float, jitter: float, rng: random.Random) -> float:
    """Return the time, longer or shorter by up to the share ``jitter``."""
    return time_s * rng.uniform(1.0 - jitter, 1.0 + jitter)


def come_back_s(time_s: float, rng: random.Random, *, most_s: float = math.inf) -> float:
    """Return when a caller who is sent away now should come back, at most ``most_s``.

    That is up to half as long again as ``time_s``: those who are sent away together must not be back together.
    """
    return min(most_s, time_s * rng.uniform(1.0, 1.5))
