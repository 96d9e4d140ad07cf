"""Answers less of a call before it refuses the call: the degradation ladder.

A short answer now is worth more than a full one that comes too late, and more than none. So calls start at the
rung that the pressure on the service dictates, as far as their kind allows, and a call that is refused there is
tried once at each rung further down before its caller is told no (when it has waited already, only where it
does not wait again: at the lowest that is computed, from a cache, later).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from policies.call import FULL, Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import (
    BreakerOpen,
    CallRefused,
    NoReplica,
    Overloaded,
    QueueFull,
    RungMissed,
    Throttled,
    WaitedTooLong,
)
from policies.events import Degraded, EventSink, LevelChanged, NullSink
from policies.ladder import (
    BY_PRIORITY,
    REFUSE,
    RUNGS,
    WITHOUT_WORK,
    ClassRungs,
    Ladder,
    LadderSettings,
    depth,
)
from policies.pressure import NoPressure, Pressure
from policies.work import Work

HELPED: Final = (Overloaded, QueueFull, WaitedTooLong)
"""Refusals that a lesser call may escape; nobody's quota, breaker or missing replica is mended by asking for less."""
HELPED_WITHOUT_WORK: Final = (NoReplica, BreakerOpen, Throttled)
"""Refusals that only a rung without work may escape: an answer of before, or one for later."""
LOOK_EVERY_S: Final = 0.01
REFUSALS: Final = "refusals"
_CALM: Final = "calm"

Entitled = Callable[[Call, str], bool]
"""Whether a call may be answered at a rung; asked anew at each rung, right before it is used."""


def everyone(call: Call, rung: str) -> bool:
    """Let everybody to every rung that the kind of call allows."""
    return True


class Degradation:
    """The ladder around a handler.

    Args:
        pressure: what the level goes by, besides refusals.
        classes: limits by ``call.service_class``, for calls without ``rungs`` of their own; a class that is not in
            it goes by the call's priority.
        priorities: limits by priority.
        entitled: asked before each rung; ``False`` skips it.
        handlers: who answers at a rung instead of the handler below (another model, a cache). Without one a rung
            of ``WITHOUT_WORK`` is skipped. One that raises ``RungMissed`` has nothing for this call.
    """

    def __init__(
        self,
        settings: LadderSettings | None = None,
        *,
        pressure: Pressure | None = None,
        classes: Mapping[str, ClassRungs] | None = None,
        priorities: Mapping[Any, ClassRungs] = BY_PRIORITY,
        entitled: Entitled = everyone,
        handlers: Mapping[str, Handler[Any]] | None = None,
        clock: Clock | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._settings = settings or LadderSettings()
        self._clock = clock or SystemClock()
        self._ladder = Ladder(self._clock, self._settings)
        self._looked_at = -math.inf
        self._pressure = pressure or NoPressure()
        self._classes = dict(classes or {})
        self._priorities = dict(priorities)
        self._entitled = entitled
        self._handlers = dict(handlers or {})
        self._sink = sink or NullSink()

    @property
    def level(self) -> int:
        """Return the present level; 0 is full service."""
        return self._ladder.level

    def look(self) -> int:
        """Take the present pressure and return the level; for who asks without a call of its own."""
        self._look()
        return self.level

    def limits(self, call: Call) -> ClassRungs:
        """Return between which rungs the call may be answered."""
        return call.rungs or self._classes.get(call.service_class) or self._priorities[call.priority]

    def would_start_at(self, call: Call, rung: str) -> bool:
        """Tell whether a call of this kind would at present start at that rung or below it.

        For what is done before the pipeline, such as asking a tool that the call can do without.
        """
        self._look()
        return depth(rung) <= self._start(call) and self._entitled(call, rung)

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, at the best rung at which it is not refused.

        Raises:
            CallRefused: the refusal at the last rung that it may be tried at.
        """
        self._look()
        delivery = call.delivery
        refusal: CallRefused | None = None
        descent = self._descent(call)
        while (step := next(descent, None)) is not None:
            rung, lesser = step
            handler: Handler[T] = self._handlers.get(rung, inner)
            if refusal is None:
                self._pressure.served(call.work, lesser.work if handler is inner else Work())
            if rung != FULL:
                self._sink.emit(Degraded(call.request_id, rung))
            delivery.rung = rung
            try:
                return await handler(lesser)
            except RungMissed:
                continue
            except HELPED as error:
                self._watch(self._settings.down_at, REFUSALS)
                refusal = error
                if delivery.started:
                    break
                if isinstance(error, WaitedTooLong):  # who has waited once does not wait again at every rung
                    descent = _without_waiting(descent)
            except HELPED_WITHOUT_WORK as error:
                refusal = error
                if delivery.started:
                    break
                descent = filter(_is_without_work, descent)
            except CallRefused:
                delivery.rung = REFUSE
                raise
        assert refusal is not None
        delivery.rung = REFUSE
        raise refusal

    def _start(self, call: Call) -> int:
        return max(self.limits(call).at(self._ladder.level), depth(call.delivery.rung))

    def _descent(self, call: Call) -> Iterator[tuple[str, Call]]:
        """Yield the call as it is asked first, and then at each lower rung that takes something more away."""
        start, lowest = self._start(call), depth(self.limits(call).lowest)
        rung, lesser = call.delivery.rung, call
        for name in RUNGS[1 : start + 1]:
            smaller = self._at(lesser, name)
            if smaller is not None:
                rung, lesser = max(rung, name, key=depth), smaller
        yield rung, lesser
        for name in RUNGS[start + 1 : lowest + 1]:
            smaller = self._at(lesser, name)
            if smaller is not None:
                lesser = smaller
                yield name, lesser

    def _at(self, call: Call, rung: str) -> Call | None:
        if rung in WITHOUT_WORK and rung not in self._handlers:
            return None
        if call.degradable is None or not self._entitled(call, rung):
            return None
        return call.degradable.at(call, rung)

    def _look(self) -> None:
        """Take the present pressure; not for every one of many calls, because it changes no faster than this."""
        now = self._clock.now()
        if not 0.0 <= now - self._looked_at < LOOK_EVERY_S:
            self._looked_at = now
            self._watch(*self._pressure.read())

    def _watch(self, pressure: float, source: str) -> None:
        before = self._ladder.level
        level = self._ladder.observe(pressure)
        if level != before:
            self._sink.emit(LevelChanged(level, source if level > before else _CALM))


def _is_without_work(step: tuple[str, Call]) -> bool:
    return step[0] in WITHOUT_WORK


def _without_waiting(descent: Iterator[tuple[str, Call]]) -> Iterator[tuple[str, Call]]:
    """Yield the last step that is computed, and those without work as they are reached."""
    computed: deque[tuple[str, Call]] = deque(maxlen=1)
    for step in descent:
        if not _is_without_work(step):
            computed.append(step)
            continue
        yield from computed
        computed.clear()
        yield step
    yield from computed
