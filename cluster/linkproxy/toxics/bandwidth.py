"""Limits the rate, in pieces of at most 100 ms, so that a slow link trickles and does not burst."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cluster.linkproxy.stage import Stage, Toxic

_PIECE_S: Final = 0.1


@dataclass(slots=True)
class Bandwidth(Toxic):
    rate: int = 0
    """Kilobytes (1000 bytes) a second; 0 lets nothing through, as in Toxiproxy."""

    async def run(self, stage: Stage) -> None:
        free_at = stage.now()
        while (chunk := await stage.head()) is not None:
            if self.rate <= 0:
                await asyncio.Event().wait()
            bytes_per_s = self.rate * 1000
            size = min(len(chunk.data), round(bytes_per_s * _PIECE_S))
            free_at = max(free_at, chunk.at) + size / bytes_per_s
            await stage.sleep_until(free_at)
            await stage.forward(size)
