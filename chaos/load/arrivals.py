"""Seeded Poisson arrivals. Pure, so that the same seed gives the same arrivals in every arm and on every machine."""

from __future__ import annotations

import random


def poisson(rate_per_s: float, duration_s: float, seed: int | str) -> list[float]:
    """Return ascending arrival offsets in seconds, all within ``[0, duration_s)``.

    A longer duration extends the list and changes nothing before it. A text seed is hashed by
    :class:`random.Random` the same way on every machine and in every process.

    Raises:
        ValueError: a rate or duration that is not positive.
    """
    if rate_per_s <= 0:
        raise ValueError(f"rate_per_s must be positive, not {rate_per_s:g}")
    if duration_s <= 0:
        raise ValueError(f"duration_s must be positive, not {duration_s:g}")
    draws = random.Random(f"{seed}/arrivals")
    offsets: list[float] = []
    at = draws.expovariate(rate_per_s)
    while at < duration_s:
        offsets.append(at)
        at += draws.expovariate(rate_per_s)
    return offsets
