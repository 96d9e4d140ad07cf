"""Where answers are kept: the record, what a store must do, and one in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer and all that is needed to know whose it is. Times are seconds since the epoch by the store's clock.

    ``described`` is the text that the key is a digest of, ``seal`` a digest over everything else.
    """

    key: str
    tenant: str
    described: str
    body: bytes
    tokens: int
    """Of work that a hit saves."""
    saved_s: float
    """The same in replica-seconds."""
    stored_at: float
    fresh_until: float
    stale_until: float
    seal: str = ""

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return len(self.body) + len(self.described) + 512


class AnswersUnavailable(Exception):
    """The store did not answer. The cache goes on without it: what is not found is computed."""


class AnswerStore(Protocol):
    """Keeps records by key. It need not keep them for as long as they are good."""

    def now(self) -> float:
        """Return the time by the store's clock."""
        ...

    async def get(self, key: str) -> Kept | None:
        """Return what is under the key; the cache finds out whether it may be used.

        Raises:
            AnswersUnavailable: the store did not answer.
        """
        ...

    async def put(self, kept: Kept) -> None:
        """Keep a record in place of what is under its key.

        Raises:
            AnswersUnavailable: the store did not answer.
        """
        ...

    async def drop(self, key: str) -> None:
        """Forget what is under the key.

        Raises:
            AnswersUnavailable: the store did not answer.
        """
        ...


class MemoryAnswers:
    """Keeps records in this process, ``most_bytes`` in all; what was not asked for longest goes first."""

    def __init__(self, most_bytes: int = 16 * 1024 * 1024, *, wall: Callable[[], float] = time.time) -> None:
        if most_bytes < 0:
            raise ValueError(f"most_bytes is {most_bytes}: it must be at least 0")
        self._most_bytes = most_bytes
        self._wall = wall
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def now(self) -> float:
        return self._wall()

    async def get(self, key: str) -> Kept | None:
        return self.take(key)

    async def put(self, kept: Kept) -> None:
        self.place(kept)

    async def drop(self, key: str) -> None:
        self.remove(key)

    def take(self, key: str) -> Kept | None:
        """Return a record, without waiting."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
        return kept

    def place(self, kept: Kept) -> None:
        """Keep a record, without waiting."""
        self.remove(kept.key)
        if kept.size > self._most_bytes:
            return
        self._kept[kept.key] = kept
        self.size += kept.size
        while self.size > self._most_bytes:
            self.remove(next(iter(self._kept)))

    def remove(self, key: str) -> None:
        """Forget a record, without waiting."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size -= kept.size
