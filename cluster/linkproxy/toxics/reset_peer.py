"""Resets the connection, some time after the first data.

Unlike the Go server, which prepares the reset when a connection is opened, it also resets connections that were
open before the toxic was added; there they get an ordinary close.
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class ResetPeer(Toxic):
    timeout: int = 0
    """Milliseconds from the first data, or from the end of the stream if that comes first."""

    async def run(self, stage: Stage) -> None:
        await stage.head()
        await stage.sleep(self.timeout / 1000)
        stage.reset()
