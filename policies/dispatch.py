"""Carries out one attempt: chooses the replica, books its work, and reports how it went.

This is the one place that knows that an attempt has begun and ended, so that accounts, ejection and events
cannot disagree about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policies.balance import Balancer
from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock
from policies.errors import AttemptError, NoReplica
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    EventSink,
    Refused,
)
from policies.fleet import Fleet, Replica
from policies.outlier import OutlierDetection
from policies.progress import Progress, Reached
from policies.rates import Rates
from policies.silence import Silence
from policies.work import Reservation, WorkLedger


class Dispatch:
    """The innermost choice: which replica. ``outlier`` is None where nothing is ever ejected."""

    def __init__(
        self,
        fleet: Fleet,
        balancer: Balancer,
        *,
        ledger: WorkLedger,
        rates: Rates,
        clock: Clock,
        sink: EventSink,
        outlier: OutlierDetection | None = None,
        retry_after_s: float = 2.0,
    ) -> None:
        self._fleet = fleet
        self._balancer = balancer
        self._ledger = ledger
        self._rates = rates
        self._clock = clock
        self._sink = sink
        self._outlier = outlier
        self._silence = Silence(clock)
        self._retry_after_s = retry_after_s

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
            candidates = [one for one in candidates if not self._is_suspect(one)] or candidates
        if not candidates and attempt.number > 1:
            raise NoReplica("no other replica is left", retry_after_s=self._retry_after_s)
        if not candidates:
            raise self._refusal(call.request_id)
        return self._balancer.pick(candidates, retry=attempt.number > 1)

    def _refusal(self, request_id: str) -> NoReplica:
        self._sink.emit(Refused(request_id, NoReplica.reason))
        return NoReplica("no replica is there", retry_after_s=self._retry_after_s)

    def _is_suspect(self, replica: Replica) -> bool:
        """Tell whether the replica should be left alone for now.

        It is when it is silent, or when it is on trial and somebody awaits a first token there already.
        """
        if self._silence.is_silent(replica):
            return True
        assert self._outlier is not None
        return self._outlier.is_on_trial(replica) and self._ledger.at(replica).prompt_tokens > 0

    async def _attempt(self, call: Call, attempt: Attempt, reservation: Reservation, inner: Handler[T]) -> T:
        replica = reservation.replica
        watch = _Watch(self, call.request_id, attempt.number, reservation)
        progress = Progress(self._clock, watch.progressed)
        names = (call.request_id, attempt.number, replica.name)
        outcome, failure = "cancelled", ""
        self._sink.emit(AttemptStarted(*names))
        try:
            answer = await inner(call.trying(replace(attempt, replica=replica, progress=progress)))
            outcome = "ok"
        except AttemptError as error:
            outcome, failure = "failed", type(error).__name__
            error.replica = replica
            error.attempts = attempt.number
            if self._outlier is not None:
                self._outlier.failed(replica, error)
            raise
        finally:
            watch.ended()
            self._sink.emit(AttemptEnded(*names, outcome, failure))
        if self._outlier is not None:
            self._outlier.succeeded(replica)
        return answer


class _Watch:
    """Follows the progress of one attempt into the accounts and the events."""

    __slots__ = ("_dispatch", "_free_slot", "_names", "_number", "_reservation", "_started_at")

    def __init__(self, dispatch: Dispatch, request_id: str, number: int, reservation: Reservation) -> None:
        self._dispatch = dispatch
        self._reservation = reservation
        self._names = (request_id, number, reservation.replica.name)
        self._started_at = dispatch._clock.now()
        self._number = dispatch._silence.sent(reservation.replica)
        ahead = dispatch._ledger.at(reservation.replica)
        self._free_slot = ahead.sequences <= dispatch._rates.slots
        self._free_slot = self._free_slot and ahead.prompt_tokens == reservation.work.prompt_tokens

    def progressed(self, reached: Reached, tokens: int) -> None:
        if tokens:
            self._reservation.tokens(tokens)
        if reached is Reached.HEADERS:
            self._dispatch._silence.over(self._reservation.replica, self._number, headers=True)
            self._dispatch._sink.emit(AttemptHeaders(*self._names))
        elif reached is Reached.FIRST_TOKEN:
            after_s = self._dispatch._clock.now() - self._started_at
            if self._free_slot:
                self._dispatch._rates.first_token(self._reservation.work.prompt_tokens, after_s)
            self._dispatch._sink.emit(AttemptFirstToken(*self._names, after_s))

    def ended(self) -> None:
        self._dispatch._silence.over(self._reservation.replica, self._number, headers=False)
