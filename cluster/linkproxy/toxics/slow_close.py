"""Delays the end of the stream; its data is not delayed."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class SlowClose(Toxic):
    delay: int = 0
    """Milliseconds."""

    async def run(self, stage: Stage) -> None:
        while await stage.head() is not None:
            await stage.forward()
        await stage.sleep(self.delay / 1000)
