"""Replicas that hold so many sequences and queue the rest in the order in which they came, as an engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from policies.call import Call
from policies.fleet import Replica
from tests.fakes.virtual_time import now


class BatchEngines:
    """A handler for the bottom of a pipeline; every replica of the fleet has slots of its own.

    A call waits for a slot, is prefilled in ``base_s + s_per_token`` a token, and then gets a token every ``tpot_s``.
    """

    def __init__(
        self, slots: int = 8, *, base_s: float = 0.05, s_per_token: float = 0.0002, tpot_s: float = 0.04
    ) -> None:
        self._slots = slots
        self._base_s = base_s
        self._s_per_token = s_per_token
        self.tpot_s = tpot_s
        self._free: dict[Replica, asyncio.Semaphore] = {}
        self.ttft_s: list[float] = []
        """Of every call, from when the engine got it."""
        self.at_once = 0
        self.most_at_once = 0
        self.on_finish: Callable[[int, float], None] | None = None

    async def __call__(self, call: Call, /) -> str:
        assert call.attempt is not None
        replica = call.attempt.replica
        assert replica is not None
        arrived = now()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            call.attempt.progress.headers()
            async with self._free.setdefault(replica, asyncio.Semaphore(self._slots)):
                await asyncio.sleep(self._base_s + call.work.prompt_tokens * self._s_per_token)
                call.attempt.progress.tokens()
                self.ttft_s.append(now() - arrived)
                for _ in range(call.work.output_tokens - 1):
                    await asyncio.sleep(self.tpot_s)
                    call.attempt.progress.tokens()
        finally:
            self.at_once -= 1
        if self.on_finish is not None:
            self.on_finish(call.work.output_tokens, (call.work.output_tokens - 1) * self.tpot_s)
        return "answer"
