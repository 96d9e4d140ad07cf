"""Carries out one attempt: chooses the replica, books its work, and reports how it went.

This is the one place that knows that an attempt has begun and ended, so that accounts, ejection and events
cannot disagree about it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from policies.balance import Balancer, LeastWork
from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import AttemptError, NoReplica
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    EventSink,
    NullSink,
    Refused,
)
from policies.fleet import Fleet, Replica
from policies.growth import come_back_s
from policies.observe import AttemptObserver, ObservedAttempt
from policies.outlier import OutlierDetection
from policies.progress import Progress, Reached
from policies.rates import Rates
from policies.silence import Silence
from policies.work import Outstanding, Reservation, WorkLedger

_IDLE = Outstanding()


class Dispatch:
    """The innermost choice: which replica. ``outlier`` is None where nothing is ever ejected."""

    def __init__(
        self,
        fleet: Fleet,
        balancer: Balancer | None = None,
        *,
        ledger: WorkLedger | None = None,
        rates: Rates | None = None,
        clock: Clock | None = None,
        sink: EventSink | None = None,
        outlier: OutlierDetection | None = None,
        observers: Sequence[AttemptObserver] = (),
        retry_after_s: float = 2.0,
        rng: random.Random | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock = clock or SystemClock()
        self._ledger = ledger or WorkLedger()
        self._rates = rates or Rates(clock)
        self._balancer = balancer or LeastWork(self._ledger, self._rates)
        self._sink = sink or NullSink()
        self._outlier = outlier
        self._silence = Silence(clock)
        self._observers = (*([] if outlier is None else [outlier]), *observers)
        self._retry_after_s = retry_after_s
        self._rng = rng or random.Random()

    def rotation(self) -> Sequence[Replica]:
        """Return the replicas that may get new attempts."""
        return self._fleet.replicas if self._outlier is None else self._outlier.rotation()

    def require_replica(self, request_id: str) -> None:
        """Refuse a call for which nobody is there, before anything else is done for it.

        Raises:
            NoReplica: no replica is known.
        """
        if not self._fleet.replicas:
            raise self._refusal(request_id)

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Make one attempt.

        Raises:
            NoReplica: there is none, or none that this call has not just failed on.
            AttemptError: the attempt failed.
        """
        attempt = call.attempt or Attempt()
        replica = self._choose(call, attempt)
        call.delivery.attempts, call.delivery.replica = attempt.number, replica.name
        with self._ledger.reserve(replica, call.work) as reservation:
            return await self._attempt(call, attempt, reservation, inner)

    def _choose(self, call: Call, attempt: Attempt) -> Replica:
        """Prefer replicas not yet tried, then those above suspicion; never take the one that has just failed."""
        candidates: Sequence[Replica] = self.rotation()
        if attempt.avoid:
            last = attempt.avoid[-1]
            candidates = (
                [one for one in candidates if one not in attempt.avoid]
                or [one for one in candidates if one is not last]
                or [one for one in self._fleet.replicas if one not in attempt.avoid]
            )
        if self._outlier is not None:
            # A retry that has nowhere else to go may go beyond the probes: better than to fail its call.
            candidates = self._outlier.admitted(candidates) or candidates
            candidates = [one for one in candidates if not self._is_suspect(one)] or candidates
        if not candidates and attempt.number > 1:
            raise NoReplica("no other replica is left", retry_after_s=self._retry_after_s)
        if not candidates:
            raise self._refusal(call.request_id)
        return self._balancer.pick(candidates, retry=attempt.number > 1, work=call.work)

    def _refusal(self, request_id: str) -> NoReplica:
        self._sink.emit(Refused(request_id, NoReplica.reason))
        # Jittered: those who are told so while nobody is there must not all be back in the same instant.
        return NoReplica("no replica is there", retry_after_s=come_back_s(self._retry_after_s, self._rng))

    def _is_suspect(self, replica: Replica) -> bool:
        """Tell whether the replica should be left alone for now.

        It is when it is silent, or when it has just failed and somebody awaits a first token there already.
        """
        if self._silence.is_silent(replica):
            return True
        assert self._outlier is not None
        return self._outlier.is_suspect(replica) and self._ledger.at(replica).prompt_tokens > 0

    async def _attempt(self, call: Call, attempt: Attempt, reservation: Reservation, inner: Handler[T]) -> T:
        replica = reservation.replica
        watch = _Watch(self, call, attempt, reservation)
        record = watch.record
        names = (call.request_id, attempt.number, replica.name)
        failure: AttemptError | None = None
        record.outcome = "cancelled"
        self._sink.emit(AttemptStarted(*names, call.work.tokens))
        for observer in self._observers:
            observer.started(record)
        try:
            async with watch.scope:
                answer = await inner(call.trying(replace(attempt, replica=replica, progress=record.progress)))
                watch._over = True
            record.outcome = "ok"
        except AttemptError as error:
            failure = error
            raise
        except TimeoutError:
            if watch.aborted is None:
                raise
            failure = watch.aborted
            raise failure from None
        finally:
            if failure is not None:
                record.outcome = "failed"
                failure.replica, failure.attempts = replica, attempt.number
            call.delivery.output_tokens += record.tokens
            watch.ended()
            for observer in self._observers:
                observer.ended(record, failure)
            name = "" if failure is None else type(failure).__name__
            self._sink.emit(AttemptEnded(*names, record.outcome, name))
        return answer


class _Watch:
    """Follows the progress of one attempt into the accounts, the events and the record that observers see."""

    __slots__ = (
        "_dispatch",
        "_listener",
        "_names",
        "_number",
        "_over",
        "_reservation",
        "aborted",
        "record",
        "scope",
    )

    def __init__(self, dispatch: Dispatch, call: Call, attempt: Attempt, reservation: Reservation) -> None:
        replica, work = reservation.replica, reservation.work
        self._dispatch = dispatch
        self._reservation = reservation
        self._listener = attempt.listener
        self._names = (call.request_id, attempt.number, replica.name)
        self._number = dispatch._silence.sent(replica)
        self.aborted: AttemptError | None = None
        self._over = False
        self.scope = dispatch._clock.timeout(None)
        ahead = dispatch._ledger.at(replica)
        has_slot = ahead.sequences <= dispatch._rates.slots
        progress = Progress(dispatch._clock, self.progressed)
        self.record = ObservedAttempt(
            call.request_id,
            attempt.number,
            replica,
            work,
            progress,
            progress.started_at,
            free_slot=has_slot and ahead.prompt_tokens == work.prompt_tokens,
            abort=self.abort,
            expected_ttft_s=dispatch._rates.predicted_ttft_s(_IDLE, ahead.prompt_tokens)
            if has_slot
            else None,
        )

    def progressed(self, reached: Reached, tokens: int) -> None:
        if self._over:
            return  # a straggler: what an attempt sends after its end is nobody's
        dispatch, record = self._dispatch, self.record
        if tokens:
            self._reservation.tokens(tokens)
            record.tokens += tokens
        if reached is Reached.HEADERS:
            dispatch._silence.over(record.replica, self._number, headers=True)
            dispatch._sink.emit(AttemptHeaders(*self._names))
        elif reached is Reached.FIRST_TOKEN:
            record.first_token_at = record.progress.last_at
            after_s = record.first_token_at - record.started_at
            if record.free_slot:
                dispatch._rates.first_token(record.work.prompt_tokens, after_s)
            dispatch._sink.emit(AttemptFirstToken(*self._names, after_s))
            for observer in dispatch._observers:
                observer.first_token(record)
        if self._listener is not None:
            self._listener(reached, tokens)

    def abort(self, error: AttemptError) -> None:
        if self.aborted is None and not self._over:
            self.aborted = error
            self.scope.reschedule(self._dispatch._clock.now())

    def ended(self) -> None:
        self._over = True
        self._dispatch._silence.over(self.record.replica, self._number, headers=False)
