"""Tries a call again, on another replica: from its beginning, or from where it was cut.

There is one owner of retries: this policy. It never repeats what the client has seen part of, never what the
replica found wrong with the call itself, never past the deadline, and never without budget. An answer of which
tokens are there already is continued where that is proven to be exact (:mod:`policies.resume`), started again
where nothing of it was delivered, and otherwise given up.
"""

from __future__ import annotations

import random

from policies.backoff import Backoff, FullJitter
from policies.call import Attempt, Call, Handler, Resumable, T
from policies.clock import Clock, SystemClock
from policies.errors import AttemptError, NoReplica, NotResumable
from policies.events import EventSink, NullSink, Resumed, RetryScheduled, RetrySuppressed, Wasted
from policies.fleet import Replica
from policies.progress import Reached
from policies.resume import ResumeSettings
from policies.retry_budget import Hold, RetryBudget
from policies.work import Work


class Retry:
    """At most ``max_attempts`` attempts in a row that bring nothing; without a budget only that bounds them.

    ``resume`` is None where no stream is ever continued.
    """

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        budget: RetryBudget | None = None,
        resume: ResumeSettings | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}: at least 1 attempt is needed")
        self._max_attempts = max_attempts
        self._backoff: Backoff = backoff or FullJitter()
        self._budget = budget
        self._resume = resume
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, with retries.

        Raises:
            AttemptError: the last attempt's error, when no further attempt may be made.
            NotResumable: part of the answer was delivered, and its rest could come out differently.
        """
        if call.attempt is not None:
            return await inner(call)  # its retries have an owner further out: two would multiply them
        if self._budget is not None:
            self._budget.deposit(call.work)
        course = _Course(call)
        asked = call
        last: AttemptError | None = None
        tried: tuple[Replica, ...] = ()
        while True:
            try:
                return await inner(asked.trying(Attempt(course.number, avoid=tried)))
            except NoReplica:
                if last is None:
                    raise
                raise self._given_up(call, course.number, "replica", last) from None
            except AttemptError as error:
                made = max(1, call.delivery.attempts - course.number + 1)  # two, where one was hedged
                course.failed(made)
                error.attempts = course.number - 1
                last = error
                tried = (*tried, *error.beside)
                tried = (*tried, error.replica) if error.replica is not None else tried
            resumable = self._to_resume(call, last)
            if resumable is None:
                asked, again = call, call.work
                course.restart()
            elif resumable.complete:
                answer: T = await resumable.end(call)
                return answer
            else:
                asked = resumable.continued(call)
                again = Work(asked.work.prompt_tokens, sequences=asked.work.sequences)  # the rest is new work
            await self._wait(call, course, last, again, resumable)

    def _to_resume(self, call: Call, error: AttemptError) -> Resumable | None:
        """Return what goes on with the answer, or None when the call is to start again.

        Raises:
            AttemptError: neither may be done.
        """
        if not (error.retryable and call.idempotent):
            raise error
        resumable = call.resumable
        if self._resume is None or resumable is None:
            if call.delivery.started:
                raise error
            return None
        if not (call.delivery.started or resumable.tokens):
            return None
        why = resumable.refusal
        if why is None:
            return resumable
        if not call.delivery.started:
            return None
        lost = NotResumable(f"the stream was cut ({error}) and cannot be continued: {why}", why=why)
        lost.attempts, lost.replica = error.attempts, error.replica
        raise lost from error

    async def _wait(
        self, call: Call, course: _Course, error: AttemptError, again: Work, resumable: Resumable | None
    ) -> None:
        """Hold budget for the work that is done ``again`` and sleep; raise ``error`` when there must be no attempt."""
        number = course.number
        if course.fruitless >= self._max_attempts:
            raise self._given_up(call, number, "attempts", error)
        if resumable is not None and self._resume and call.delivery.resumes >= self._resume.max_resumes:
            raise self._given_up(call, number, "resumes", error)
        delay_s = self._backoff.delay_s(max(0, course.fruitless - 1), error, self._rng)
        if delay_s >= call.deadline.remaining():
            raise self._given_up(call, number, "deadline", error)
        hold: Hold | None = None
        if self._budget is not None:
            hold = self._budget.hold(again)
            if hold is None:
                raise self._given_up(call, number, "budget", error)
        try:
            if resumable is None:
                self._sink.emit(RetryScheduled(call.request_id, number, delay_s))
            await self._clock.sleep(delay_s)
            if hold is not None:
                hold.spend()
        finally:
            if hold is not None:
                hold.refund()
        if resumable is not None:
            call.delivery.resumes += 1
            self._sink.emit(Resumed(call.request_id, number, resumable.tokens))
            self._wasted(call, prefill=again.prompt_tokens)
        else:
            began = error.reached >= Reached.FIRST_TOKEN
            self._wasted(call, prefill=call.work.prompt_tokens if began else 0, decode=course.lost)

    def _wasted(self, call: Call, prefill: int, decode: int = 0) -> None:
        if prefill or decode:
            call.delivery.wasted_tokens += prefill + decode
            self._sink.emit(Wasted(call.request_id, prefill, decode))

    def _given_up(self, call: Call, number: int, reason: str, error: AttemptError) -> AttemptError:
        """Return the error with a mark, so that nobody further out takes over what the owner has given up."""
        self._sink.emit(RetrySuppressed(call.request_id, number, reason))
        error.given_up = True
        return error


class _Course:
    """How the attempts of one call have gone."""

    __slots__ = ("_resumable", "_tokens", "fruitless", "lost", "number")

    def __init__(self, call: Call) -> None:
        self._resumable = call.resumable
        self._tokens = 0
        self.number = 1
        """Of the next attempt."""
        self.fruitless = 0
        """Attempts in a row that brought nothing."""
        self.lost = 0
        """Tokens that were given up with the latest attempt."""

    def failed(self, made: int = 1) -> None:
        """The latest attempts, ``made`` at the same time, have failed."""
        self.number += made
        tokens = 0 if self._resumable is None else self._resumable.tokens
        self.fruitless = 0 if tokens > self._tokens else self.fruitless + made
        self._tokens = tokens

    def restart(self) -> None:
        """What the attempts so far have brought is given up: they were as good as none."""
        self.fruitless = self.number - 1
        self.lost, self._tokens = self._tokens, 0
        if self._resumable is not None and self.lost:
            self._resumable.forget()
