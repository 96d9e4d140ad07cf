"""Finds a replica that has stopped giving tokens, whatever its health check says.

An engine can hang while everything around it answers: connections are taken, headers are sent, ``/health`` is
green. What cannot be faked is a token. So the *replica* is judged and not the stream: one stream may wait
(queued, preempted) as long as any other of that replica moves. A replica on which attempts wait and no token has
come for ``silent_s`` is stalled: whoever decides about ejection is told, and its attempts are ended, so that
they go on elsewhere while their callers still wait.

Three things look like a stall and are none. A client that does not read: its attempt is paused and not counted.
A process that was itself held up: what has come lies unread, so it looks twice, a turn of the event loop apart,
and starts the clock again when its own timer was late. And silence everywhere: when each of several busy
replicas is silent, the cause is shared, and there is nowhere better to go. One that idles is somewhere to go: it may
idle only because the silent ones hold every permit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from policies.clock import Clock, SystemClock
from policies.errors import AttemptError, AttemptTimeout, EngineStalled, ReplicaLost
from policies.fleet import Replica
from policies.observe import AttemptObserver, ObservedAttempt
from policies.progress import Reached
from policies.rates import Rates


@dataclass(frozen=True, slots=True)
class StallSettings:
    """How long a busy replica may give no token; all in seconds.

    To ``silent_s`` comes the time that the prompts it holds usually take to prefill, at most ``most_prefill_s``;
    twice the prefill of its longest prompt and ten times the usual gap between tokens are always allowed. It looks
    every ``look_s`` while attempts are in flight.
    """

    silent_s: float = 1.2
    most_prefill_s: float = 0.5
    look_s: float = 0.1

    def __post_init__(self) -> None:
        for name in ("silent_s", "look_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")
        if not self.most_prefill_s >= 0:
            raise ValueError(f"most_prefill_s is {self.most_prefill_s}: it must be at least 0")
        if self.look_s > self.silent_s / 2:
            raise ValueError(f"look_s is {self.look_s}: it must be at most half of silent_s={self.silent_s}")


class _Line:
    """What is known of one replica while it has attempts in flight."""

    __slots__ = ("answer_at", "attempts", "sign_at")

    def __init__(self) -> None:
        self.attempts: dict[ObservedAttempt, None] = {}
        self.sign_at = float("-inf")
        """When its engine last showed life in an attempt that is over: by a token, or by a proper end."""
        self.answer_at = float("-inf")
        """When it last answered anything; refusals are given in front of an engine that hangs, too."""


def _always(_: Replica, __: str) -> bool:
    return True


class StallWatch(AttemptObserver):
    """Watches all replicas with one timer, which runs only while attempts are in flight.

    ``on_stall`` is told the replica and the reason; it returns whether the replica is out of rotation now. If not
    (there must stay somebody), its attempts are left to wait. ``rotation`` returns the replicas to which attempts may
    go; None: those that have some in flight.
    """

    def __init__(
        self,
        settings: StallSettings | None = None,
        *,
        clock: Clock | None = None,
        rates: Rates | None = None,
        on_stall: Callable[[Replica, str], bool] = _always,
        rotation: Callable[[], Collection[Replica]] | None = None,
    ) -> None:
        self._settings = settings or StallSettings()
        self._clock = clock or SystemClock()
        self._rates = rates
        self._on_stall = on_stall
        self._rotation = rotation
        self._lines: dict[Replica, _Line] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._not_before = float("-inf")
        self._looked = False

    def started(self, attempt: ObservedAttempt) -> None:
        """Watch it."""
        self._lines.setdefault(attempt.replica, _Line()).attempts[attempt] = None
        if self._timer is None:
            self._look_in(self._settings.look_s)

    def ended(self, attempt: ObservedAttempt, error: AttemptError | None) -> None:
        """Forget it. A replica without one sign of life while it waited for headers in vain is stalled."""
        line = self._lines.get(attempt.replica)
        if line is None or attempt not in line.attempts:
            return
        del line.attempts[attempt]
        if attempt.outcome == "ok":
            line.sign_at = self._clock.now()
        elif attempt.progress.reached >= Reached.FIRST_TOKEN:
            line.sign_at = max(line.sign_at, attempt.progress.last_at)
        if attempt.outcome == "ok" or not isinstance(error, AttemptTimeout | ReplicaLost | None):
            line.answer_at = self._clock.now()
        if (
            isinstance(error, AttemptTimeout)
            and not isinstance(error, EngineStalled)
            and attempt.progress.reached is Reached.NOTHING
            and not self._lived_since(line, attempt.started_at)
        ):
            self._stall(attempt.replica, line, self._clock.now() - attempt.started_at)
        if not line.attempts:
            del self._lines[attempt.replica]
        if not self._lines and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the timer ---------------------------------------------------------------------------------------

    def _look_in(self, delay_s: float) -> None:
        self._due_at = self._clock.now() + delay_s
        self._timer = self._clock.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.now()
        if now - self._due_at > self._settings.look_s:
            self._not_before = now  # we were held up ourselves: whatever came meanwhile is still unread
        silent = [
            (replica, line, silent_s)
            for replica, line in self._lines.items()
            if (silent_s := self._silent_s(line, now)) > self._settings.silent_s
            and silent_s > self._allowed_s(line)
        ]
        if silent and not self._looked:
            self._looked = True
            self._look_in(0.0)
            return
        self._looked = False
        for replica, line, silent_s in silent:
            self._stall(replica, line, silent_s)
        if self._lines and self._timer is None:
            self._look_in(self._settings.look_s)

    # --- the judgement -----------------------------------------------------------------------------------

    def _silent_s(self, line: _Line, now: float) -> float:
        """Return for how long attempts have waited at the replica without any token from it; 0 when none waits."""
        sign_at, waits_since = max(line.sign_at, self._not_before), now
        for attempt in line.attempts:
            progress = attempt.progress
            begun = progress.reached >= Reached.FIRST_TOKEN
            if begun and progress.last_at > sign_at:
                sign_at = progress.last_at
                if now - sign_at < self._settings.look_s:
                    break  # it is well: no need to look at every stream
            if not progress.paused:  # headers are no token: until the first, the wait counts from the start
                waits_since = min(waits_since, progress.last_at if begun else attempt.started_at)
        return now - max(sign_at, waits_since)

    def _allowed_s(self, line: _Line) -> float:
        settings, rates = self._settings, self._rates
        if rates is None:
            return settings.silent_s
        per_token_s = 1.0 / rates.prefill_tokens_per_s
        prompts = [
            one.work.prompt_tokens for one in line.attempts if one.progress.reached < Reached.FIRST_TOKEN
        ]
        return max(
            settings.silent_s + min(settings.most_prefill_s, sum(prompts) * per_token_s),
            2.0 * max(prompts, default=0) * per_token_s,
            10.0 * rates.slots / rates.decode_tokens_per_s,
        )

    def _stall(self, replica: Replica, line: _Line, silent_s: float) -> None:
        if self._all_are_silent(replica):
            return
        reason = f"no token on any of its streams for {silent_s:.1f} s"
        if not self._on_stall(replica, reason):
            return
        for attempt in tuple(line.attempts):
            if not attempt.progress.paused:
                reached = attempt.progress.reached
                attempt.abort(EngineStalled(f"replica {replica.name} gave {reason}", reached=reached))

    def _all_are_silent(self, suspect: Replica) -> bool:
        """Tell whether there are other replicas to go to, and each is busy and silent too."""
        now, lines = self._clock.now(), self._lines
        rotation = lines if self._rotation is None else self._rotation()
        if suspect not in rotation:
            return False  # nothing new goes there, and what waits there has everywhere else to go
        others = [lines.get(replica) for replica in rotation if replica is not suspect]
        return bool(others) and all(
            line is not None and self._silent_s(line, now) > self._settings.silent_s / 2 for line in others
        )

    def _lived_since(self, line: _Line, instant: float) -> bool:
        if max(line.sign_at, line.answer_at) > instant:
            return True
        return any(
            one.progress.reached is not Reached.NOTHING and one.progress.last_at > instant
            for one in line.attempts
        )
