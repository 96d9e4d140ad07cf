"""Modelled replicas on virtual time: a first-in-first-out queue, batch slots, and an engine that can stall.

Small on purpose: just enough of an engine that load has consequences. What is cancelled leaves the queue or frees
its slot at once, as at a replica whose connection is closed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from policies.call import Call
from policies.fleet import Fleet, Replica
from tests.fakes.virtual_time import now


@dataclass(frozen=True)
class Engine:
    """How fast a modelled replica is. ``step_s`` is the time of one token of every sequence in a slot."""

    slots: int = 8
    prefill_s: float = 0.04
    step_s: float = 0.04

    def capacity_per_s(self, output_tokens: int, replicas: int = 1) -> float:
        """Return the calls of that length that the replicas can answer in a second."""
        return replicas * self.slots / (self.prefill_s + (output_tokens - 1) * self.step_s)


class ModelReplicas:
    """The handler at the bottom of a pipeline: every replica of the fleet is an engine of the same kind.

    ``stall`` is the interval in which no engine moves. Headers come at once nevertheless, because the front of a
    real replica is another process than its engine; with ``deaf`` the front is silent too.
    """

    def __init__(
        self, fleet: Fleet, engine: Engine, stall: tuple[float, float] = (0.0, 0.0), *, deaf: bool = False
    ) -> None:
        self._engine = engine
        self._stall = stall
        self._deaf = deaf
        self._slots = {replica: asyncio.Semaphore(engine.slots) for replica in fleet.replicas}
        self.attempts = 0
        self.tokens = 0
        """Tokens that were generated, whether anybody got to see them or not."""

    async def __call__(self, call: Call, /) -> str:
        """Generate the answer."""
        assert call.attempt is not None
        assert call.attempt.replica is not None
        self.attempts += 1
        progress = call.attempt.progress
        if self._deaf:
            await self._work(0.0)
        progress.headers()
        async with self._slots[self._replica(call)]:
            for number in range(call.work.output_tokens):
                await self._work(self._engine.step_s if number else self._engine.prefill_s)
                self.tokens += 1
                progress.tokens()
        return "answer"

    def _replica(self, call: Call) -> Replica:
        assert call.attempt is not None
        assert call.attempt.replica is not None
        return call.attempt.replica

    async def _work(self, for_s: float) -> None:
        begin, end = self._stall
        if now() + for_s > begin and now() < end:
            await asyncio.sleep(end - now())
        await asyncio.sleep(for_s)
