"""Two attempts of one call, of which the first to give a token may answer.

The race is decided at that token, synchronously: in the same turn of the event loop in which one attempt reports
it, the other is cancelled, so that only one can ever hand output on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock
from policies.errors import AttemptError, NoReplica
from policies.events import EventSink, Hedged, Wasted
from policies.progress import Progress, Reached
from policies.retry_budget import Hold


@dataclass(frozen=True, slots=True)
class Rules:
    """What a race is run by.

    ``second`` gives the second attempt and what pays for it, or None when there is to be none; ``learned`` is told
    how long the first token took, in seconds.
    """

    second: Callable[[Call, Attempt], tuple[Attempt, Hold | None] | None]
    learned: Callable[[Call, float], None]
    clock: Clock
    sink: EventSink


class _Lane(Generic[T]):
    """One of the two attempts of a race."""

    __slots__ = ("_outer", "_race", "attempt", "begun", "hold", "replica", "task")

    def __init__(self, race: Race[T], attempt: Attempt, hold: Hold | None = None) -> None:
        self._race = race
        self._outer = attempt.listener
        progress = Progress(race.clock, self.progressed)  # for handlers that no dispatch gives one of its own
        self.attempt = replace(attempt, progress=progress, listener=self.progressed)
        self.hold = hold
        self.replica = ""
        self.begun = False
        self.task = asyncio.ensure_future(self._run())
        self.task.add_done_callback(self._ended)

    def progressed(self, reached: Reached, tokens: int) -> None:
        """Take part in the race; the loser ends here, should it come this far at all."""
        if reached >= Reached.FIRST_TOKEN and not self._race.won_by(self):
            raise asyncio.CancelledError("another attempt has answered first")
        if self._outer is not None:
            self._outer(reached, tokens)

    async def _run(self) -> T:
        race = self._race
        self.begun = True
        if self is not race.first:
            race.second_begins(self.attempt.number)
        try:
            answer = await race.inner(race.call.trying(self.attempt))
        except NoReplica:
            self.begun = False
            if self is not race.first:
                race.call.delivery.attempts = race.first.attempt.number  # there was no second, after all
            raise
        if not race.won_by(self):
            raise asyncio.CancelledError("another attempt has answered first")
        return answer

    def end(self) -> None:
        """Cancel it; once only, so that its own clean-up is not cancelled too."""
        if not self.task.done() and not self.task.cancelling():
            self.task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._race.ended(self, None if task.cancelled() else task.exception())


class Race(Generic[T]):
    """A call's first attempt and its hedge, and which of them may answer."""

    def __init__(self, rules: Rules, call: Call, attempt: Attempt, inner: Handler[T]) -> None:
        self.call = call
        self.inner = inner
        self.clock = rules.clock
        self._rules = rules
        self._attempt = attempt
        self._began_at = self.clock.now()
        self._lanes: list[_Lane[T]] = []
        self._winner: _Lane[T] | None = None
        self._failure: AttemptError | None = None
        self._outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def first(self) -> _Lane[T]:
        """Return the lane of the first attempt."""
        return self._lanes[0]

    async def run(self, after_s: float | None) -> T:
        """Begin the first attempt, and the second when no token has come ``after_s`` later."""
        self._lanes.append(_Lane(self, self._attempt))
        if after_s is not None:
            self._timer = self.clock.call_later(after_s, self._hedge)
        return await self._outcome

    async def close(self) -> None:
        """End what still runs, wait until it has ended, and settle what the hedge was paid with."""
        self._stop_timer()
        try:
            for lane in self._lanes:
                lane.end()
            await asyncio.wait([lane.task for lane in self._lanes])
        finally:
            for lane in self._lanes:
                if lane.hold is not None and lane.begun:
                    lane.hold.spend()
                elif lane.hold is not None:
                    lane.hold.refund()

    def won_by(self, lane: _Lane[T]) -> bool:
        """Tell whether the lane is the winner; the first that asks is, and the other is cancelled there and then."""
        if self._winner is None:
            self._winner = lane
            self._stop_timer()
            self._rules.learned(self.call, self.clock.now() - self._began_at)
            for loser in self._lanes:
                if loser is not lane and not loser.task.done():
                    loser.end()
                    self._wasted(self.call.work.prompt_tokens if loser.begun else 0)
            if len(self._lanes) > 1 and lane is self.first:
                self.call.delivery.replica = lane.replica
        return self._winner is lane

    def second_begins(self, number: int) -> None:
        """The hedge's attempt is about to be made."""
        self.call.delivery.attempts = number
        after_s = self.clock.now() - self._began_at
        self._rules.sink.emit(Hedged(self.call.request_id, number, after_s))

    def _wasted(self, prefill: int) -> None:
        """Count the loser's prompt, of which it is not known how much had been read."""
        if prefill:
            self.call.delivery.wasted_tokens += prefill
            self._rules.sink.emit(Wasted(self.call.request_id, prefill, 0))

    def ended(self, lane: _Lane[T], error: BaseException | None) -> None:
        """A lane is over: settle the outcome, unless the other can still bring one."""
        if self._outcome.done() or self._winner not in (None, lane):
            return
        last = self._winner is lane or all(other.task.done() for other in self._lanes)
        if lane.task.cancelled():
            if last:
                self._outcome.cancel()
        elif error is None:
            self._outcome.set_result(lane.task.result())
        elif last or not isinstance(error, NoReplica | AttemptError) or not getattr(error, "retryable", True):
            self._outcome.set_exception(self._with_the_other(error))
        elif isinstance(error, AttemptError):
            self._failure = error

    def _with_the_other(self, error: BaseException) -> BaseException:
        """Return the error of all attempts: it counts them, and a retry is to avoid the replicas of both."""
        other = self._failure
        if other is not None and isinstance(error, NoReplica):
            error = other
        elif other is not None and isinstance(error, AttemptError) and other.replica is not None:
            error.beside = (other.replica,)
        if isinstance(error, AttemptError):
            error.attempts = max(error.attempts, self.call.delivery.attempts)
        return error

    def _hedge(self) -> None:
        first = self.first
        if first.task.done() or self.call.deadline.remaining() <= 0:
            return
        second = self._rules.second(self.call, self._attempt)
        if second is None:
            return
        first.replica = self.call.delivery.replica
        self._lanes.append(_Lane(self, *second))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
