"""Tries a call again, on another replica, while nothing of the answer has been delivered.

There is one owner of retries: this policy. It never repeats what the client has seen part of, never what the
replica found wrong with the call itself, never past the deadline, and never without budget.
"""

from __future__ import annotations

import random

from policies.backoff import FullJitter
from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import AttemptError, NoReplica
from policies.events import EventSink, NullSink, RetryScheduled, RetrySuppressed
from policies.fleet import Replica
from policies.retry_budget import Hold, RetryBudget


class Retry:
    """At most ``max_attempts`` attempts; without a budget only that number bounds them."""

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        backoff: FullJitter | None = None,
        budget: RetryBudget | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}: at least 1 attempt is needed")
        self._max_attempts = max_attempts
        self._backoff = backoff or FullJitter()
        self._budget = budget
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, with retries.

        Raises:
            AttemptError: the last attempt's error, when no further attempt may be made.
        """
        if self._budget is not None:
            self._budget.deposit(call.work)
        last: AttemptError | None = None
        tried: tuple[Replica, ...] = ()
        number = 1
        while True:
            try:
                return await inner(call.trying(Attempt(number, avoid=tried)))
            except NoReplica:
                if last is None:
                    raise
                self._suppress(call, number, "replica")
                raise last from None
            except AttemptError as error:
                error.attempts = number
                last = error
                tried = (*tried, error.replica) if error.replica is not None else tried
            number += 1
            await self._wait(call, number, last)

    async def _wait(self, call: Call, number: int, error: AttemptError) -> None:
        """Hold budget and sleep; raise ``error`` when there must be no attempt of that number."""
        if not (error.retryable and call.idempotent) or call.delivery.started:
            raise error
        if number > self._max_attempts:
            self._suppress(call, number, "attempts")
            raise error
        delay_s = self._backoff.delay_s(number - 2, error, self._rng)
        if delay_s >= call.deadline.remaining():
            self._suppress(call, number, "deadline")
            raise error
        hold: Hold | None = None
        if self._budget is not None:
            hold = self._budget.hold(call.work)
            if hold is None:
                self._suppress(call, number, "budget")
                raise error
        try:
            self._sink.emit(RetryScheduled(call.request_id, number, delay_s))
            await self._clock.sleep(delay_s)
            if hold is not None:
                hold.spend()
        finally:
            if hold is not None:
                hold.refund()

    def _suppress(self, call: Call, number: int, reason: str) -> None:
        self._sink.emit(RetrySuppressed(call.request_id, number, reason))
