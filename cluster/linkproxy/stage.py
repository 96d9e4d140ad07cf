"""One toxic at work on one direction of one connection.

A direction with toxics is a chain of stages that ends at the destination's socket. A toxic looks at the head of
its stage's queue and forwards or drops it; the head leaves the queue only in the same step in which it is
passed on. So a toxic can be stopped at any ``await``, when it is changed or taken off, and no byte is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Chunk:
    """Bytes that arrived together, and when (event loop's clock, seconds)."""

    data: memoryview
    at: float


@dataclass(frozen=True, slots=True)
class End:
    """The end of a direction: a FIN, or a reset when ``reset``. Nothing follows it."""

    reset: bool


Item = Chunk | End


class Receiver(Protocol):
    """What a stage passes on to: the next stage or the destination's socket."""

    @property
    def has_room(self) -> bool: ...

    async def wait_room(self) -> None:
        """Return when it may have room; the caller looks again."""
        ...

    def put(self, item: Item) -> None:
        """Take an item, with or without room: chunks that are already under way are never refused."""
        ...


class Line(Protocol):
    """What a toxic may do to its connection as a whole."""

    def close(self) -> None:
        """Close both ends after what was already passed on."""
        ...

    def reset(self) -> None:
        """Close both ends with a TCP reset; what was not delivered is lost."""
        ...


@dataclass(slots=True)
class Toxic(ABC):
    """A fault on one direction of a link: parameters, behaviour, and one line in ``toxics/__init__.py``.

    Subclasses are dataclasses too; their fields, all integers, are the attributes of the API.
    """

    buffer_bytes: ClassVar[int] = 64 * 1024
    """How much may wait in the toxic before the source is no longer read."""

    @abstractmethod
    async def run(self, stage: Stage) -> None:
        """Forward or drop what arrives, until ``stage.head()`` gives None; the end is then passed on.

        It is cancelled when the toxic is changed or taken off, and started anew after a change.
        """

    def removed(self, stage: Stage) -> None:
        """React to being taken off a live connection; what still waits is passed on afterwards."""
        return


class Stage:
    """The queue before one toxic, and what the toxic may do with it."""

    def __init__(
        self, toxic: Toxic, following: Receiver, line: Line, rng: random.Random, on_room: Callable[[], None]
    ) -> None:
        self.toxic = toxic
        self.following = following
        self.rng = rng
        self.passed = 0
        """Bytes passed on since the toxic was put on this connection."""
        self._line = line
        self._on_room = on_room
        self._queue: deque[Item] = deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    # --- for the toxic -----------------------------------------------------------------------------------

    async def head(self) -> Chunk | None:
        """Wait for the first chunk and return it; it stays in the queue. None at the end of the stream."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        item = self._queue[0]
        return item if isinstance(item, Chunk) else None

    async def forward(self, size: int | None = None, at: float | None = None) -> None:
        """Pass on the head, or at most its first ``size`` bytes, as soon as there is room for it.

        ``at`` becomes its time of arrival at the next toxic.
        """
        while not self.following.has_room:
            await self.following.wait_room()
        chunk = self._queue[0]
        assert isinstance(chunk, Chunk)
        if size is None or size >= len(chunk.data):
            self.drop()
        else:
            chunk, rest = Chunk(chunk.data[:size], chunk.at), Chunk(chunk.data[size:], chunk.at)
            self._queue[0] = rest
            self._shrink(size)
        self.passed += len(chunk.data)
        if at is not None:
            chunk.at = at
        self.following.put(chunk)

    def drop(self) -> None:
        """Take the head off the queue."""
        chunk = self._queue.popleft()
        assert isinstance(chunk, Chunk)
        self._shrink(len(chunk.data))

    async def sleep(self, duration_s: float) -> None:
        if duration_s > 0:
            await asyncio.sleep(duration_s)

    async def sleep_until(self, at: float) -> None:
        """Sleep until the event loop's clock shows ``at``."""
        await self.sleep(at - self.now())

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def close(self) -> None:
        self._line.close()

    def reset(self) -> None:
        self._line.reset()

    # --- for the flow ------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return self._waiting < self.toxic.buffer_bytes

    async def wait_room(self) -> None:
        await self._room.wait()

    def put(self, item: Item) -> None:
        self._queue.append(item)
        if isinstance(item, Chunk):
            self._waiting += len(item.data)
            if not self.has_room:
                self._room.clear()
        self._arrived.set()

    def start(self) -> None:
        """Run the toxic; again when it has changed."""
        self.stop()
        self._task = asyncio.get_running_loop().create_task(self._drive())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def hand_over(self) -> None:
        """Stop and pass on all that waits, in order; whoever waited for room here looks elsewhere."""
        self.stop()
        while self._queue:
            self.following.put(self._queue.popleft())
        self._waiting = 0
        self._room.set()

    def _shrink(self, size: int) -> None:
        full = not self.has_room
        self._waiting -= size
        if full and self.has_room:
            self._room.set()
            self._on_room()

    async def _drive(self) -> None:
        try:
            await self.toxic.run(self)
        except Exception:
            _log.exception("toxic %r failed; its connection is reset", self.toxic)
            self.reset()
            return
        if self._queue and isinstance(self._queue[0], End):
            self.following.put(self._queue.popleft())
