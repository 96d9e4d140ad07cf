"""Modelled replicas: batch slots, a queue, prefill and decode, behind links that can fail in every known way.

A replica works in steps, as an engine with continuous batching does: a step prefills what has come in and
gives one token to every running sequence. The token at a position is a function of the call alone, so that
whatever a client gets can be compared with what it should have got.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from policies.errors import AttemptError, CallRejected, ReplicaBusy, ReplicaFailed, ReplicaLost
from tests.simulation.plan import CallPlan, FaultPlan, ReplicaPlan

HEADERS, END = "headers", "end"
Item = str | int | AttemptError
"""What comes over a link: ``HEADERS``, a token, ``END``, or the error that the connection ends with."""


def token_of(n: int, position: int) -> int:
    """Return the token of a call at a position: no two calls and no two positions are alike."""
    return n * 1000 + position


class Stream:
    """One connection: what the replica has sent, in order, at the pace of the link."""

    def __init__(self, asked: CallPlan, start: int, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asked
        self.position = start
        self.limit = limit
        """The position at which the answer ends."""
        self.cut_at: int | None = None
        self.cut_reason = ""
        self.greeted = False
        """Whether its headers have been sent."""
        self.closed = False
        self._loop = loop
        self._under_way: deque[Item] = deque()
        self._items: deque[Item] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._last_at = 0.0

    def send(self, item: Item, link_s: float = 0.0) -> None:
        """Put an item on the link; it never overtakes an earlier one."""
        self._last_at = max(self._last_at, self._loop.time() + link_s)
        self._under_way.append(item)
        self._loop.call_at(self._last_at, self.arrived)  # which item it is, the order of timers does not say

    def post(self, item: Item) -> None:
        """Put an item on the link, of which the sender itself says when it has ``arrived``."""
        self._under_way.append(item)

    def break_off(self, reason: str) -> None:
        """The connection is reset: what is still under way is lost."""
        self.closed = True
        self._put(ReplicaLost(reason))

    async def take(self) -> Item:
        """Return the next item."""
        while not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._items.popleft()

    def arrived(self) -> None:
        """The oldest item that is under way is there."""
        item = self._under_way.popleft()
        if not self.closed:
            self._put(item)

    def _put(self, item: Item) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class Conditions:
    """What is wrong with a replica now: the faults that are active on it, by kind."""

    active: list[FaultPlan] = field(default_factory=list)

    def of(self, kind: str) -> FaultPlan | None:
        """Return the active fault of that kind, the latest if there are several."""
        return next((one for one in reversed(self.active) if one.kind == kind), None)


class ModelReplica:
    """One incarnation of a replica."""

    def __init__(
        self, name: str, plan: ReplicaPlan, rng: random.Random, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.dead = False
        self.black_hole = False
        self.conditions = Conditions()
        self._plan = plan
        self._rng = rng
        self._loop = loop
        self.waiting: deque[Stream] = deque()
        self.running: list[Stream] = []
        self._step: asyncio.TimerHandle | None = None

    # --- the link ----------------------------------------------------------------------------------------

    def connect(self, asked: CallPlan, start: int, limit: int) -> Stream:
        """Open a stream for the rest of an answer from ``start`` to ``limit``; never blocks and never raises."""
        stream = Stream(asked, start, limit, self._loop)
        if self.dead:
            if not self.black_hole:
                stream.send(ReplicaLost(f"connection to {self.name} refused"), 0.001)
            return stream
        if self.conditions.of("deaf") is not None:
            self.waiting.append(stream)
            return stream
        refusal = self._refusal(asked)
        self._greet(stream)
        if refusal is not None:
            stream.send(refusal)
            return stream
        self._doom(stream)
        self.waiting.append(stream)
        self._wake()
        return stream

    def close(self, stream: Stream, late: Callable[[], None]) -> None:
        """The reader is gone. A straggling replica notices later, and tries to send meanwhile (``late``)."""
        stream.closed = True
        fault = self.conditions.of("straggle")
        if fault is None or self.dead or not (stream in self.running or stream in self.waiting):
            self._free(stream)
        else:
            self._loop.call_later(fault.extra_s / 2, late)
            self._loop.call_later(fault.extra_s, self._free, stream)

    def kill(self, *, black_hole: bool) -> None:
        """End, with every connection; a black hole ends silently."""
        self.dead, self.black_hole = True, black_hole
        self._halt()
        for stream in (*self.running, *self.waiting):
            if not black_hole:
                stream.break_off(f"{self.name} was killed")
        self.running.clear()
        self.waiting.clear()

    def changed(self) -> None:
        """The conditions have changed: stand still, or go on."""
        if self._frozen():
            self._halt()
        if self.conditions.of("deaf") is None:
            for stream in self.waiting:
                self._greet(stream)
        self._wake()

    def _greet(self, stream: Stream) -> None:
        if not stream.greeted:
            stream.greeted = True
            stream.send(HEADERS, self._latency_s())

    def _refusal(self, asked: CallPlan) -> AttemptError | None:
        longest = self._plan.longest_prompt
        if longest is not None and asked.prompt_tokens > longest:
            return CallRejected("the prompt is too long", status=400)
        if self._hit("busy") is not None:
            fault = self.conditions.of("busy")
            assert fault is not None
            return ReplicaBusy("no room", retry_after_s=fault.retry_after_s)
        return None if self._hit("failing") is None else ReplicaFailed("internal error")

    def _doom(self, stream: Stream) -> None:
        for kind, reason in (("cut", "cut"), ("abort", "ended as aborted")):
            if self._hit(kind) is not None:
                stream.cut_at = self._rng.randint(stream.position, stream.limit)
                stream.cut_reason = reason

    def _hit(self, kind: str) -> FaultPlan | None:
        fault = self.conditions.of(kind)
        return fault if fault is not None and self._rng.random() < fault.share else None

    def _latency_s(self) -> float:
        fault = self.conditions.of("slow")
        return self._plan.link_s + (0.0 if fault is None else self._rng.uniform(0.5, 1.0) * fault.extra_s)

    # --- the engine --------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Tell whether it takes calls and gives no tokens."""
        return self.black_hole if self.dead else self._frozen()

    def _frozen(self) -> bool:
        return any(one.kind in ("mute", "deaf") for one in self.conditions.active)

    def _halt(self) -> None:
        if self._step is not None:
            self._step.cancel()
            self._step = None

    def _wake(self) -> None:
        if self._step is not None or self.dead or self._frozen() or not (self.running or self.waiting):
            return
        plan, lasts_s = self._plan, self._plan.step_s
        while self.waiting and len(self.running) < plan.slots:
            stream = self.waiting.popleft()
            self.running.append(stream)
            tokens = stream.asked.prompt_tokens + stream.position
            lasts_s += plan.prefill_base_s + tokens * plan.prefill_s_per_token
        self._step = self._loop.call_later(lasts_s, self._stepped)

    def _stepped(self) -> None:
        self._step = None
        sent: list[Stream] = []
        for stream in tuple(self.running):
            if stream.position == stream.cut_at:
                self.running.remove(stream)
                stream.post(ReplicaLost(f"the stream was {stream.cut_reason}"))
                sent.append(stream)
                continue
            if stream.position < stream.limit:
                stream.post(token_of(stream.asked.n, stream.position))
                stream.position += 1
                sent.append(stream)
            if stream.position >= stream.limit and stream.cut_at != stream.position:
                self.running.remove(stream)
                stream.post(END)
                sent.append(stream)
        self._loop.call_later(self._latency_s(), self._arrived, sent)  # one timer a step, not one a token
        self._wake()

    def _arrived(self, sent: list[Stream]) -> None:
        for stream in sent:
            stream.arrived()

    def _free(self, stream: Stream) -> None:
        if stream in self.running:
            self.running.remove(stream)
        elif stream in self.waiting:
            self.waiting.remove(stream)
        self._wake()
