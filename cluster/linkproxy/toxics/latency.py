"""Delays each chunk, counted from its arrival, so that a constant latency moves the first token and no gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class Latency(Toxic):
    latency: int = 0
    """Milliseconds."""
    jitter: int = 0
    """Milliseconds; the delay is uniform within ``latency`` ± this. Order is kept."""

    buffer_bytes: ClassVar[int] = 32 * 1024 * 1024
    """A long fat pipe: what is on its way must fit, or the delay would become a throttle."""

    async def run(self, stage: Stage) -> None:
        while (chunk := await stage.head()) is not None:
            delay = self.latency + stage.rng.uniform(-self.jitter, self.jitter)
            due = chunk.at + max(0.0, delay) / 1000
            await stage.sleep_until(due)
            await stage.forward(at=due)  # the next latency in the chain counts from there
