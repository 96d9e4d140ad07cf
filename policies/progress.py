"""How far one attempt has got.

Whether an attempt may be repeated, which time-out applies to it and what its failure says about the replica
all depend on one thing: had the replica sent nothing, its headers, its first token, or more? The handler at
the bottom writes it here and every policy above reads it, so that there is one account of it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from policies.clock import Clock


class Reached(IntEnum):
    """The last thing that an attempt has received; ordered."""

    NOTHING = 0
    HEADERS = 1
    FIRST_TOKEN = 2
    MID_STREAM = 3


Listener = Callable[[Reached, int], None]
"""Told ``(reached, tokens)``: after headers with 0 tokens, then after each piece of output with its tokens."""


class Progress:
    """A mutable mark that one attempt moves forward, never back."""

    __slots__ = (
        "_clock",
        "_listener",
        "_paused_at",
        "last_at",
        "paused",
        "paused_s",
        "reached",
        "started_at",
    )

    def __init__(self, clock: Clock, listener: Listener | None = None) -> None:
        self._clock = clock
        self._listener = listener
        self.reached = Reached.NOTHING
        self.started_at = self.last_at = clock.now()
        self.paused = False
        """True while the attempt waits for its own client to read: that silence is not the replica's."""
        self.paused_s = 0.0
        """How long it has waited for its client in all."""
        self._paused_at = 0.0

    def headers(self) -> None:
        """The response headers have come."""
        if self.reached is Reached.NOTHING:
            self.reached = Reached.HEADERS
            self.last_at = self._clock.now()
            if self._listener is not None:
                self._listener(self.reached, 0)

    def tokens(self, count: int = 1) -> None:
        """Some output has come."""
        self.last_at = self._clock.now()
        if self.reached is not Reached.MID_STREAM:
            self.reached = Reached.MID_STREAM if self.reached is Reached.FIRST_TOKEN else Reached.FIRST_TOKEN
        if self._listener is not None:
            self._listener(self.reached, count)

    def pause(self) -> None:
        """The replica is not being read, because the client does not read either."""
        if not self.paused:
            self.paused = True
            self._paused_at = self._clock.now()

    def resume(self) -> None:
        """Reading goes on; silence counts from now."""
        self.last_at = self._clock.now()
        if self.paused:
            self.paused = False
            self.paused_s += self.last_at - self._paused_at
