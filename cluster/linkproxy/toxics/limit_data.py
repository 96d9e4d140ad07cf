"""Closes the connection after so many bytes: a stream cut in the middle."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class LimitData(Toxic):
    bytes: int = 0
    """How many are passed on, counted from when the toxic was put on the connection."""

    async def run(self, stage: Stage) -> None:
        while await stage.head() is not None:
            left = self.bytes - stage.passed
            if left > 0:
                await stage.forward(left)
            if stage.passed >= self.bytes:
                stage.close()
                return
