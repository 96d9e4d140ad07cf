"""One breaker for each of several things, so that one that fails is not held against the others."""

from __future__ import annotations

import random

from policies.breaker import Breaker, BreakerSettings
from policies.clock import Clock, SystemClock
from policies.events import EventSink, NullSink


class Breakers:
    """Breakers by name, with the same settings. Names must come from a bounded set: none is ever forgotten."""

    def __init__(
        self,
        kind: str,
        settings: BreakerSettings | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._made: dict[str, Breaker] = {}

    def __getitem__(self, name: str) -> Breaker:
        """Return the breaker of that name; in events it is called ``kind:name``."""
        if name not in self._made:
            self._made[name] = Breaker(
                f"{self._kind}:{name}", self._settings, clock=self._clock, rng=self._rng, sink=self._sink
            )
        return self._made[name]
