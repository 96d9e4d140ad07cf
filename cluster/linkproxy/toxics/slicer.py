"""Cuts chunks into small pieces with a pause after each: what a reader that expects whole messages fails on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cluster.linkproxy.stage import Stage, Toxic

_SHORTEST_S: Final = 0.001


@dataclass(slots=True)
class Slicer(Toxic):
    average_size: int = 0
    """Bytes. Unlike the Go server, which crashes, 0 leaves chunks whole."""
    size_variation: int = 0
    """Bytes; each piece is uniform within ``average_size`` ± this."""
    delay: int = 0
    """Microseconds after each piece; the timers of the Go server make at least a millisecond of any, and so
    does this."""

    async def run(self, stage: Stage) -> None:
        while (chunk := await stage.head()) is not None:
            size = len(chunk.data)
            if self.average_size > 0:
                variation = min(abs(self.size_variation), self.average_size - 1)
                size = stage.rng.randint(self.average_size - variation, self.average_size + variation)
            await stage.forward(size)
            if self.delay > 0:
                await stage.sleep(max(self.delay / 1e6, _SHORTEST_S))
