"""A black hole: drops all data and closes the connection when it was quiet for a while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cluster.linkproxy.stage import Stage, Toxic


@dataclass(slots=True)
class Timeout(Toxic):
    timeout: int = 0
    """Milliseconds without data after which the connection is closed; 0 holds it for ever.

    As in Toxiproxy, each dropped chunk starts the time anew: under a stream of tokens it does not run out.
    """

    async def run(self, stage: Stage) -> None:
        while True:
            try:
                async with asyncio.timeout(self.timeout / 1000 if self.timeout > 0 else None):
                    chunk = await stage.head()
            except TimeoutError:
                stage.close()
                return
            if chunk is None:
                return
            stage.drop()

    def removed(self, stage: Stage) -> None:
        """Close: bytes were lost, so that the stream must not go on as if nothing had been."""
        stage.close()
