"""Changes nothing; the template for the next toxic."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class Noop(Toxic):
    async def run(self, stage: Stage) -> None:
        while await stage.head() is not None:
            await stage.forward()
