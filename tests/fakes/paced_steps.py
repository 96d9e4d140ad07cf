"""Slots and steps of a modelled engine, without an engine: what a paced replica does, at no cost in CPU time.

All sequences in a slot get their next token at the end of the same step. Who comes meanwhile waits for the next step,
and for a slot. With these a fake's slots can be full on a machine that is too small for engines and gateway together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Seat:
    """One sequence: waits until it gets a slot, then for each of its tokens."""

    prompt_tokens: int
    left: int
    """Tokens that are still to come."""
    ready: int = 0
    """Tokens that have come and were not taken."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def token(self) -> None:
        """Wait for the next token."""
        while not self.ready:
            self._came.clear()
            await self._came.wait()
        self.ready -= 1

    def give(self) -> None:
        self.left -= 1
        self.ready += 1
        self._came.set()


class PacedSteps:
    """A replica's slots. A step takes ``base_s``, and ``per_token_s`` for each token of decode and prefill in it."""

    def __init__(self, slots: int = 8, base_s: float = 0.04, per_token_s: float = 0.0002) -> None:
        self._slots = slots
        self._base_s = base_s
        self._per_token_s = per_token_s
        self.running: list[Seat] = []
        self.waiting: deque[Seat] = deque()
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def seat(self, prompt_tokens: int, tokens: int) -> Iterator[Seat]:
        """Queue for a slot; it is free again after the last token, or when the block is left before."""
        one = Seat(prompt_tokens, tokens)
        self.waiting.append(one)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._go())
        try:
            yield one
        finally:
            for held in (self.running, self.waiting):
                with contextlib.suppress(ValueError):
                    held.remove(one)

    async def _go(self) -> None:
        """Take steps while there is anybody; each begins where the one before should have ended."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        while self.running or self.waiting:
            work = len(self.running)
            while self.waiting and len(self.running) < self._slots:
                came = self.waiting.popleft()
                self.running.append(came)
                work += came.prompt_tokens
            at = max(at, loop.time() - self._base_s) + self._base_s + self._per_token_s * work
            await asyncio.sleep(at - loop.time())
            for one in list(self.running):
                one.give()
                if not one.left:
                    self.running.remove(one)
            await asyncio.sleep(0)  # who has got its last token may come again at once
