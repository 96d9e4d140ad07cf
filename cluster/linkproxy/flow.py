"""One direction of one connection: from the source's socket through the toxics to the destination's.

Without toxics what arrives is written at once, in the callback that read it: no task, no queue, no timer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from cluster.linkproxy.counters import ByteCount
from cluster.linkproxy.stage import Chunk, End, Item, Line, Receiver, Stage, Toxic

Direction = Literal["upstream", "downstream"]


@dataclass(slots=True, eq=False)
class AppliedToxic:
    """A toxic as it stands on a link."""

    name: str
    type: str
    stream: str
    """As the client spelt it."""
    direction: Direction
    toxicity: float
    toxic: Toxic


class FlowOwner(Line, Protocol):
    """The connection, as its flows see it."""

    def ended(self, flow: Flow, reset: bool) -> None:
        """The end of the stream has come through all toxics."""
        ...


class Flow:
    """Moves bytes one way and applies the toxics that were drawn for this connection.

    Whether a toxic affects a connection is drawn once a connection and direction. The drawn number is kept, so
    that a later change of toxicity affects the same connections first.
    """

    def __init__(self, direction: Direction, owner: FlowOwner, count: ByteCount, rng: random.Random) -> None:
        self.direction = direction
        self.dest: asyncio.Transport | None = None
        self.input_ended = False
        """Nothing more comes from the source."""
        self.done = False
        """The end was delivered, or there is nobody left to deliver to."""
        self._source: asyncio.Transport | None = None
        self._owner = owner
        self._count = count
        self._rng = rng
        self._draws: dict[AppliedToxic, float] = {}
        self._stages: dict[AppliedToxic, Stage] = {}
        self._first: Stage | None = None
        self._reading = True
        self._writable = asyncio.Event()
        self._writable.set()

    def start(
        self, source: asyncio.Transport, dest: asyncio.Transport, toxics: Iterable[AppliedToxic]
    ) -> None:
        self._source, self.dest = source, dest
        self.apply(toxics)

    def feed(self, data: bytes) -> None:
        """Take what was read from the source."""
        self._count.received += len(data)
        if self.done:
            return
        if self._first is None:
            self._write(data)
        else:
            self._first.put(Chunk(memoryview(data), self._first.now()))
            self._balance()

    def end(self, reset: bool) -> None:
        """Take the end of the source: after what came before it, through the same toxics."""
        if self.input_ended:
            return
        self.input_ended = True
        (self._first or self).put(End(reset))

    def abandon(self) -> None:
        """Stop: the destination is gone, or the whole connection is closed. What waits is dropped."""
        self.done = True
        self._writable.set()
        for stage in self._stages.values():
            stage.stop()

    # --- toxics --------------------------------------------------------------------------------------

    def apply(self, toxics: Iterable[AppliedToxic]) -> None:
        """Make the chain of stages match the link's toxics: add, and take off, on the live connection."""
        wanted = [applied for applied in toxics if applied.direction == self.direction]
        for applied in wanted:
            if applied not in self._draws:
                self._draws[applied] = self._rng.random()
        wanted = [applied for applied in wanted if self._draws[applied] < applied.toxicity]
        for applied in [applied for applied in self._stages if applied not in wanted]:
            self._take_off(applied)
        self._put_on(wanted)

    def changed(self, applied: AppliedToxic, toxics: Iterable[AppliedToxic]) -> None:
        """Let a changed toxic start anew, with what waits in it."""
        self.apply(toxics)
        stage = self._stages.get(applied)
        if stage is not None and not self.done:
            stage.start()

    def _take_off(self, applied: AppliedToxic) -> None:
        stage = self._stages.pop(applied)
        stage.stop()
        if not self.done:
            stage.toxic.removed(stage)  # which may close the connection; what waits is then dropped
        stage.hand_over()
        self._link_up()

    def _put_on(self, wanted: list[AppliedToxic]) -> None:
        if self.done:
            return
        fresh = [applied for applied in wanted if applied not in self._stages]
        for applied in fresh:
            self._stages[applied] = Stage(applied.toxic, self, self._owner, self._rng, self._balance)
        self._stages = {applied: self._stages[applied] for applied in wanted}
        self._link_up()
        for applied in fresh:
            self._stages[applied].start()
        self._balance()

    def _link_up(self) -> None:
        stages = list(self._stages.values())
        self._first = stages[0] if stages else None
        receivers: list[Receiver] = [*stages[1:], self]
        for stage, following in zip(stages, receivers, strict=False):
            stage.following = following

    # --- the destination's socket, as the last receiver of the chain -----------------------------------

    @property
    def has_room(self) -> bool:
        return self._writable.is_set()

    async def wait_room(self) -> None:
        await self._writable.wait()

    def put(self, item: Item) -> None:
        if self.done:
            return
        if isinstance(item, Chunk):
            self._write(item.data)
        else:
            self.done = True
            self._owner.ended(self, item.reset)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._balance()

    def resume_writing(self) -> None:
        self._writable.set()
        self._balance()

    def _write(self, data: bytes | memoryview) -> None:
        assert self.dest is not None
        self._count.sent += len(data)
        self.dest.write(data)

    def _balance(self) -> None:
        """Read the source only while there is room for what it sends."""
        if self._source is None or self.input_ended or self.done:
            return
        wanted = (self._first or self).has_room
        if wanted != self._reading:
            self._reading = wanted
            (self._source.resume_reading if wanted else self._source.pause_reading)()
