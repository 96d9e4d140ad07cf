"""Leaves alone, for a while, what has been failing: a call that will fail is refused at once instead.

Closed, it counts. When enough calls failed, or were slow, it opens for a time that is jittered and grows. Then
it is half open: a few *leased* probes go through, the rest is still refused; good probes close it, a bad one
opens it again. A probe that is never heard of again loses its lease, so that nothing stays half open for ever.

What is no failure: an answer that says the *call* was wrong (4xx) is an answer; a busy service (429, 503), a
call refused before it was sent and a caller who gives up say nothing either way; but who gave up only after the
time from which a call is slow has seen a slow one. (After resilience4j and Polly.)
"""

from __future__ import annotations

import random
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import TracebackType

from policies.call import Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import (
    BreakerOpen,
    CallRefused,
    CallRejected,
    DeadlineExceeded,
    ReplicaBusy,
    ToolBusy,
    ToolRejected,
)
from policies.events import BreakerChanged, EventSink, NullSink
from policies.growth import doubled_s, spread_s
from policies.leases import Lease, Leases
from policies.window import OutcomeWindow


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When it opens, for how long, and how it closes; durations in seconds.

    It judges the last ``window_calls`` calls, none older than ``window_s``, once there are ``minimum_calls``:
    it opens at a share of ``failure_ratio`` failed ones, or ``slow_ratio`` ones that took ``slow_s`` or more
    (None: none is slow). It is open for ``open_s``, twice as long each further time, at most ``max_open_s``,
    ``jitter`` either way. Then at most ``probes`` calls at a time go through, each with a lease of ``lease_s``;
    ``good_probes`` good ones close it.
    """

    window_calls: int = 50
    window_s: float = 30.0
    minimum_calls: int = 10
    failure_ratio: float = 0.5
    slow_s: float | None = None
    slow_ratio: float = 0.8
    open_s: float = 2.0
    max_open_s: float = 30.0
    jitter: float = 0.2
    probes: int = 1
    good_probes: int = 2
    lease_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("window_calls", "minimum_calls", "probes", "good_probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("window_s", "open_s", "lease_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")
        for name in ("failure_ratio", "slow_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0 and at most 1")
        if self.minimum_calls > self.window_calls:
            raise ValueError(
                f"minimum_calls={self.minimum_calls} exceeds window_calls={self.window_calls}: it never opens"
            )
        if self.slow_s is not None and not self.slow_s > 0:
            raise ValueError(f"slow_s is {self.slow_s}: it must be over 0, or None")
        if not self.open_s <= self.max_open_s:
            raise ValueError(f"max_open_s is {self.max_open_s}: it must be at least open_s={self.open_s}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter is {self.jitter}: it must be in [0, 1)")


class State(StrEnum):
    """What the breaker does with a call: lets it through, refuses it, or lets a few through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Verdict(Enum):
    """What the end of one call says about the service."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"
    ABANDONED = "abandoned"
    """Nobody waited for the end: the service took at least so long."""


def judge(error: BaseException | None) -> Verdict:
    """Say what an ending means; the rule of this module's first paragraphs."""
    if error is None or isinstance(error, CallRejected | ToolRejected):
        return Verdict.GOOD
    if isinstance(error, CancelledError | DeadlineExceeded):
        return Verdict.ABANDONED
    if isinstance(error, ReplicaBusy | CallRefused | ToolBusy) or not isinstance(error, Exception):
        return Verdict.NEUTRAL
    return Verdict.BAD


class Permit:
    """One call that was let through; a context manager that judges how the call ended."""

    __slots__ = ("_began_at", "_breaker", "_lease", "_open", "_period")

    def __init__(self, breaker: Breaker, lease: Lease | None) -> None:
        self._breaker = breaker
        self._lease = lease
        self._period = breaker._period
        self._began_at = breaker._clock.now()
        self._open = True

    def close(self, verdict: Verdict) -> None:
        """Say how the call ended; only the first time counts."""
        if self._open:
            self._open = False
            held = self._lease is None or self._lease.give_back()
            if held and self._period == self._breaker._period:
                self._breaker._ended(verdict, self._breaker._clock.now() - self._began_at)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(self._breaker._judge(error))


class Breaker:
    """One breaker, for one service. A call that began before a change of state has no say in the new state."""

    def __init__(
        self,
        name: str = "breaker",
        settings: BreakerSettings | None = None,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
        judge: Callable[[BaseException | None], Verdict] = judge,
    ) -> None:
        self.name = name
        self._settings = settings or BreakerSettings()
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._judge = judge
        self._window = OutcomeWindow(most=self._settings.window_calls, age_s=self._settings.window_s)
        self._leases = self._new_leases()
        self._state = State.CLOSED
        self._period = 0
        self._openings = 0
        self._until = 0.0
        self._good = 0

    @property
    def state(self) -> State:
        """Return the present state; an open breaker whose time is up is half open."""
        if self._state is State.OPEN and self._clock.now() >= self._until:
            self._leases = self._new_leases()
            self._good = 0
            self._enter(State.HALF_OPEN, "its time is up")
        return self._state

    def permit(self) -> Permit:
        """Let one call through: ``with breaker.permit(): ...``.

        Raises:
            BreakerOpen: it must not be made now; ``retry_after_s`` says when one may.
        """
        state = self.state
        if state is State.CLOSED:
            return Permit(self, None)
        lease = self._leases.take() if state is State.HALF_OPEN else None
        if lease is None:
            waits_s = self._until - self._clock.now()
            if state is State.HALF_OPEN:
                waits_s = min(self._settings.open_s, self._leases.next_free_in_s())
            raise BreakerOpen(
                f"{self.name} has been failing and is left alone for {waits_s:.1f} s", retry_after_s=waits_s
            )
        return Permit(self, lease)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what ``await work()`` gives.

        Raises:
            BreakerOpen: it was not asked.
        """
        with self.permit():
            return await work()

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, as a policy of a pipeline.

        Raises:
            BreakerOpen: the handler below was not asked.
        """
        with self.permit():
            return await inner(call)

    def _ended(self, verdict: Verdict, took_s: float) -> None:
        settings = self._settings
        bad = verdict is Verdict.BAD
        slow = settings.slow_s is not None and took_s >= settings.slow_s
        if verdict is Verdict.NEUTRAL or (verdict is Verdict.ABANDONED and not slow):
            return
        if self._state is State.CLOSED:
            now = self._clock.now()
            self._window.add(now, bad=bad, slow=slow)
            if self._openings and now >= self._until:
                self._openings = 0  # it has been well for long: the next opening is a first one again
            self._open_if_due()
        elif self._state is State.HALF_OPEN and (bad or slow):
            self._open("a probe failed" if bad else "a probe was slow")
        elif self._state is State.HALF_OPEN:
            self._good += 1
            if self._good >= settings.good_probes:
                self._until = self._clock.now() + 2.0 * self._open_for_s()
                self._window.clear()
                self._enter(State.CLOSED, f"{self._good} good probes")

    def _open_if_due(self) -> None:
        window, settings = self._window, self._settings
        if len(window) < settings.minimum_calls:
            return
        if window.bad_share >= settings.failure_ratio:
            self._open(f"{window.bad} of {len(window)} calls failed")
        elif window.slow_share >= settings.slow_ratio:
            self._open(f"{window.slow} of {len(window)} calls were slow")

    def _open(self, reason: str) -> None:
        self._openings += 1
        self._until = self._clock.now() + spread_s(self._open_for_s(), self._settings.jitter, self._rng)
        self._enter(State.OPEN, reason)

    def _open_for_s(self) -> float:
        return doubled_s(self._settings.open_s, self._settings.max_open_s, max(self._openings - 1, 0))

    def _enter(self, state: State, reason: str) -> None:
        self._state = state
        self._period += 1
        self._sink.emit(BreakerChanged(self.name, state.value, reason))

    def _new_leases(self) -> Leases:
        return Leases(self._clock, most=self._settings.probes, lease_s=self._settings.lease_s)
