"""Bounds on waiting: one on a whole call (its deadline), three on the silences of one attempt.

A connect through a proxy always succeeds, and a health check says little about an engine that hangs. What is
left to judge a replica by is how long it takes to send headers, a first token, and each further one. A bound on
the whole attempt, which most clients have instead, says nothing of the kind: it cuts long answers that come
well, and so it is off unless it is asked for.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import AttemptTimeout, DeadlineExceeded
from policies.progress import Progress, Reached


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """``header_s`` and ``first_token_s`` count from the start of the attempt, ``stall_s`` between tokens.

    ``attempt_s`` bounds the whole attempt, however well it goes; None does not.
    """

    header_s: float = 1.0
    first_token_s: float = 5.0
    stall_s: float = 10.0
    attempt_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("header_s", "first_token_s", "stall_s", "attempt_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}: it must be over 0")
        if self.header_s > self.first_token_s:
            raise ValueError(
                f"header_s={self.header_s} exceeds first_token_s={self.first_token_s}: headers come first"
            )

    @classmethod
    def whole(cls, attempt_s: float) -> TimeoutSettings:
        """Return settings that bound nothing but the whole attempt."""
        return cls(header_s=math.inf, first_token_s=math.inf, stall_s=math.inf, attempt_s=attempt_s)


class AttemptTimeouts:
    """Ends an attempt that has been silent for too long, or that takes longer than a whole one may.

    The timer looks at the progress when it fires and sleeps on if there was some, so that a token costs no
    timer. Silence while the client does not read is not counted.
    """

    def __init__(self, settings: TimeoutSettings | None = None, *, clock: Clock | None = None) -> None:
        self._settings = settings or TimeoutSettings()
        self._clock = clock or SystemClock()
        self._longest_nap_s = min(self._settings.first_token_s, self._settings.stall_s)

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call.

        Raises:
            AttemptTimeout: nothing came for too long, or the whole took too long.
        """
        if call.attempt is None:
            call = call.trying(Attempt(progress=Progress(self._clock)))
        assert call.attempt is not None
        progress = call.attempt.progress
        scope = self._clock.timeout(self._settings.attempt_s)
        watch = _Watch(self, scope, progress)
        try:
            async with scope:
                watch.arm()
                return await inner(call)
        except TimeoutError:
            if not scope.expired():
                raise
            said = self._describe(progress.reached) if watch.gave_up else self._took_too_long()
            raise AttemptTimeout(said, reached=progress.reached) from None
        finally:
            watch.disarm()

    def due(self, progress: Progress) -> tuple[float, float]:
        """Return the instant at which the attempt is too late, and the last at which to look again."""
        if progress.paused:
            now = self._clock.now()
            return now + self._settings.stall_s, now + self._longest_nap_s
        if progress.reached is Reached.NOTHING:
            at = progress.started_at + self._settings.header_s
        elif progress.reached is Reached.HEADERS:
            at = progress.started_at + self._settings.first_token_s
        else:
            at = progress.last_at + self._settings.stall_s
        return at, min(at, self._clock.now() + self._longest_nap_s)

    def _describe(self, reached: Reached) -> str:
        if reached is Reached.NOTHING:
            return f"no response headers within {self._settings.header_s:g} s"
        if reached is Reached.HEADERS:
            return f"no first token within {self._settings.first_token_s:g} s"
        return f"no further token within {self._settings.stall_s:g} s"

    def _took_too_long(self) -> str:
        return f"the whole attempt took more than {self._settings.attempt_s:g} s"


class _Watch:
    """The timer of one attempt.

    It looks twice before it gives the attempt up: when this process itself was held up, what the replica has
    sent in the meantime lies unread, and only a further turn of the event loop shows it.
    """

    __slots__ = ("_handle", "_looked", "_progress", "_scope", "_timeouts", "gave_up")

    def __init__(self, timeouts: AttemptTimeouts, scope: asyncio.Timeout, progress: Progress) -> None:
        self._timeouts, self._scope, self._progress = timeouts, scope, progress
        self._handle: asyncio.TimerHandle | None = None
        self._looked = False
        self.gave_up = False
        """Whether silence was what ended the attempt."""

    def arm(self) -> None:
        self._looked = False
        _, look_at = self._timeouts.due(self._progress)
        if look_at == math.inf:
            return  # no silence is too long
        clock = self._timeouts._clock
        self._handle = clock.call_later(max(0.0, look_at - clock.now()), self._fired)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _fired(self) -> None:
        due_at, _ = self._timeouts.due(self._progress)
        now = self._timeouts._clock.now()
        if due_at > now:
            self.arm()
        elif not self._looked:
            self._looked = True
            self._handle = self._timeouts._clock.call_later(0.0, self._fired)
        else:
            self.gave_up = True
            self._scope.reschedule(now)


class DeadlineGuard:
    """Ends a call when its caller no longer waits."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call.

        Raises:
            DeadlineExceeded: its deadline passed first.
        """
        if not call.deadline.is_set:
            return await inner(call)
        scope = self._clock.timeout(call.deadline.remaining())
        try:
            async with scope:
                return await inner(call)
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineExceeded("the deadline of the call has passed") from None
