"""Cuts chunks into small pieces with a pause after each: what a reader that expects whole messages fails on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cluster.linkproxy.stage import Stage, Toxic

_TIMER_S: Final = 0.001
"""By how much the timers of the Go server make a pause longer than it was asked for."""


@dataclass(slots=True)
class Slicer(Toxic):
    average_size: int = 0
    """Bytes. Unlike the Go server, which crashes, 0 leaves chunks whole."""
    size_variation: int = 0
    """Bytes; each piece is uniform within ``average_size`` ± this."""
    delay: int = 0
    """Microseconds after each piece, and a millisecond more."""

    async def run(self, stage: Stage) -> None:
        pause_s = self.delay / 1e6 + _TIMER_S if self.delay > 0 else 0.0
        free_at = 0.0
        while (chunk := await stage.head()) is not None:
            size = len(chunk.data)
            if self.average_size > 0:
                variation = min(abs(self.size_variation), self.average_size - 1)
                size = stage.rng.randint(self.average_size - variation, self.average_size + variation)
            await stage.forward(size)
            free_at = max(free_at, chunk.at) + pause_s  # a late wake-up does not make the whole later
            await stage.sleep_until(free_at)
