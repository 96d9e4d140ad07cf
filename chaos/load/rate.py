"""From a measured capacity to the offered rate, so that the noise of a measurement does not move the arrivals.

Two runs of one seed must offer the same arrivals, but no two calibrations give the same number. So a rate
is laid on a coarse grid, and the rate of an earlier run of the same scenario on the same cluster is kept
as long as the new measurement agrees with it within ``TOLERANCE``.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

GRID = 1.05
"""Ratio of neighbouring rates on the grid."""
TOLERANCE = 0.15
"""Relative disagreement up to which the earlier rate is kept."""


def on_grid(rate_per_s: float) -> float:
    """Return the nearest grid rate, in calls per second with two decimals.

    Raises:
        ValueError: the rate is not positive.
    """
    if rate_per_s <= 0 or not math.isfinite(rate_per_s):
        raise ValueError(f"a rate must be positive and finite, not {rate_per_s:g}")
    return round(GRID ** round(math.log(rate_per_s, GRID)), 2)


def offered(measured_per_s: float, earlier_per_s: float | None) -> float:
    """Return the rate to offer, given the measured one and that of an earlier run (None: there is none)."""
    if earlier_per_s and abs(measured_per_s / earlier_per_s - 1) <= TOLERANCE:
        return earlier_per_s
    return on_grid(measured_per_s)


class RateMemory:
    """Remembers offered rates in one small JSON file; a file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def key(*what: Any) -> str:
        """Return a short key for what the rate belongs to (anything that JSON can hold)."""
        text = json.dumps(what, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _all(self) -> dict[str, float]:
        try:
            raw = json.loads(self._path.read_text())
            return {str(key): float(value) for key, value in raw.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def earlier(self, key: str) -> float | None:
        """Return the remembered rate in calls per second, or None."""
        return self._all().get(key)

    def keep(self, key: str, rate_per_s: float) -> None:
        """Remember a rate; written in one step."""
        rates = {**self._all(), key: rate_per_s}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".tmp")
        scratch.write_text(json.dumps(rates, indent=1))
        scratch.replace(self._path)
