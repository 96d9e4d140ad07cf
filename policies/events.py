"""What happened, as frozen records that leave through one sink.

Metrics, histories and tests all hang on this seam, so that no policy knows any of them. The sink stamps the
time: events carry none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; ``event`` is the name under which it is written down."""

    event: ClassVar[str] = "event"


@dataclass(frozen=True, slots=True)
class AttemptStarted(Event):
    """A replica was chosen and is about to be asked. ``attempt`` counts from 1, ``tokens`` is its expected work."""

    event: ClassVar[str] = "attempt_started"
    request_id: str
    attempt: int
    replica: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class AttemptHeaders(Event):
    """The replica has sent its response headers."""

    event: ClassVar[str] = "attempt_headers"
    request_id: str
    attempt: int
    replica: str


@dataclass(frozen=True, slots=True)
class AttemptFirstToken(Event):
    """The replica has sent its first token, ``after_s`` after the attempt began."""

    event: ClassVar[str] = "attempt_first_token"
    request_id: str
    attempt: int
    replica: str
    after_s: float


@dataclass(frozen=True, slots=True)
class AttemptEnded(Event):
    """``outcome`` is ok, failed or cancelled; ``error`` the name of the error's class, or empty."""

    event: ClassVar[str] = "attempt_ended"
    request_id: str
    attempt: int
    replica: str
    outcome: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class RetryScheduled(Event):
    """Attempt number ``attempt`` will begin in ``delay_s``; its budget is already held."""

    event: ClassVar[str] = "retry"
    request_id: str
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class RetrySuppressed(Event):
    """A retry would have been possible. ``reason`` is budget, deadline, replica, attempts or resumes."""

    event: ClassVar[str] = "retry_suppressed"
    request_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """A stream goes on in attempt ``attempt``, after ``at_token`` tokens that the client has already."""

    event: ClassVar[str] = "resumed"
    request_id: str
    attempt: int
    at_token: int


@dataclass(frozen=True, slots=True)
class Wasted(Event):
    """Tokens that have to be computed a second time: ``prefill`` read again, ``decode`` generated and lost."""

    event: ClassVar[str] = "wasted"
    request_id: str
    prefill: int
    decode: int


@dataclass(frozen=True, slots=True)
class Hedged(Event):
    """A second attempt was sent beside the first, which has been silent for ``after_s``."""

    event: ClassVar[str] = "hedged"
    request_id: str
    attempt: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """A call got its permit after ``waited_s`` in the queue (0 when it did not wait)."""

    event: ClassVar[str] = "admitted"
    request_id: str
    priority: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class LimitChanged(Event):
    """The adaptive limit of a replica was lowered (or has recovered) to ``limit`` sequences."""

    event: ClassVar[str] = "limit"
    replica: str
    limit: float
    reason: str


@dataclass(frozen=True, slots=True)
class Degraded(Event):
    """A call is answered at a lower rung of the ladder."""

    event: ClassVar[str] = "degraded"
    request_id: str
    rung: str


@dataclass(frozen=True, slots=True)
class LevelChanged(Event):
    """The ladder as a whole moved: ``level`` rungs are in use, 0 is full service."""

    event: ClassVar[str] = "level"
    level: int
    reason: str


@dataclass(frozen=True, slots=True)
class BreakerChanged(Event):
    """A breaker is now ``closed``, ``open`` or ``half_open``."""

    event: ClassVar[str] = "breaker"
    name: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ejected(Event):
    """A replica was taken out of rotation for ``for_s``."""

    event: ClassVar[str] = "ejected"
    replica: str
    reason: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Returned(Event):
    """An ejected replica is in rotation again."""

    event: ClassVar[str] = "returned"
    replica: str


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """Something has turned a call away before any attempt; the ladder may still try it for less."""

    event: ClassVar[str] = "refused"
    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaAdded(Event):
    """Discovery has found a replica."""

    event: ClassVar[str] = "upstream_added"
    replica: str


@dataclass(frozen=True, slots=True)
class ReplicaRemoved(Event):
    """Discovery no longer knows a replica."""

    event: ClassVar[str] = "upstream_removed"
    replica: str


@dataclass(frozen=True, slots=True)
class ToolEnded(Event):
    """A tool call is over; ``outcome`` is ok, deadline, error, unknown, cancelled, skipped, breaker or busy."""

    event: ClassVar[str] = "tool"
    request_id: str
    outcome: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class CacheUsed(Event):
    """What the answer cache was for a call: ``outcome`` is hit, stale, miss or bypass (it was not asked).

    ``tenant`` is whose call it is and ``owner`` whose answer was given (empty where none was), as each of them says
    itself: a hit with two names would be a leak. ``lookup_s`` is what asking took, ``saved_s`` the replica-seconds
    that the answer did not cost again, and ``wrong_s`` what it costs on average for being wrong. ``lost`` says that
    the store could not be asked.
    """

    event: ClassVar[str] = "cache"
    request_id: str
    outcome: str
    tenant: str = ""
    owner: str = ""
    lookup_s: float = 0.0
    saved_s: float = 0.0
    wrong_s: float = 0.0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class WrongHitPrevented(Event):
    """A kept answer was under the key that was asked for, and was not given.

    ``reason`` is what was not as it must be: tenant, terms, key, seal, future or not_entitled.
    """

    event: ClassVar[str] = "wrong_hit_prevented"
    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CallEnded(Event):
    """A call is over; ``outcome`` is ok, failed, refused, invalid or cancelled.

    ``reason`` says why it was refused, and ``rung`` at which rung of the ladder it was answered.
    """

    event: ClassVar[str] = "call_ended"
    request_id: str
    outcome: str
    reason: str = ""
    rung: str = ""


class EventSink(Protocol):
    """Takes events as they happen; it must not block and must not raise."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


class NullSink:
    """Takes everything and keeps nothing; the template for a new sink."""

    def emit(self, event: Event) -> None:
        """Do nothing."""


class Fanout:
    """Passes each event on to several sinks, in order."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: Event) -> None:
        """Pass the event to every sink."""
        for sink in self._sinks:
            sink.emit(event)
