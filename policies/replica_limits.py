"""One adaptive limit a replica, fed by what its attempts show; their sum is what a gateway may let in.

It learns in band only: no scrape and no health check is asked, so that a silent metrics endpoint looks neither
idle nor saturated. A replica that leaves takes its limit with it, and one that comes is believed to be like the others
were at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from policies.clock import Clock
from policies.errors import AttemptError, AttemptTimeout, DeadlineExceeded, PolicyError, ReplicaBusy
from policies.events import EventSink, LimitChanged, NullSink
from policies.fleet import Fleet, Replica
from policies.limits import AimdLimit, Limit, LimitSettings, Outcome, Sample
from policies.observe import AttemptObserver, ObservedAttempt
from policies.rates import Rates

_LEAST_EXPECTED_S = 0.02
"""Below this a first token is not told from the noise of the machine."""
_LEAST_TPOT_TOKENS = 8
"""Fewer tokens say nothing about their rate."""


def outcome_of(error: BaseException | None) -> Outcome:
    """Return how a permit or attempt that ended with that error is closed: only overload counts as a drop."""
    if error is None:
        return Outcome.SUCCESS
    overload = isinstance(error, AttemptTimeout | ReplicaBusy | DeadlineExceeded)
    # What an asyncio scope cuts off arrives as a TimeoutError; everything else is no news about load.
    return Outcome.DROPPED if overload or _is_plain_timeout(error) else Outcome.IGNORED


def _is_plain_timeout(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) and not isinstance(error, PolicyError)


@dataclass(slots=True)
class _Begun:
    """What was so when an attempt began."""

    in_use: int
    expected_ttft_s: float


class _Record:
    """One replica: its limit, what it holds now, and from which level its limit has fallen."""

    __slots__ = ("begun", "fallen_from", "in_use", "limit", "prompt_tokens")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.in_use = 0
        self.prompt_tokens = 0
        self.fallen_from: float | None = None
        self.begun: dict[ObservedAttempt, _Begun] = {}


class ReplicaLimits(AttemptObserver):
    """Keeps a limit for every replica of the fleet; ``changed`` is called whenever a limit has grown.

    ``make`` makes the limit of a replica that is new, an :class:`AimdLimit` for the slots of ``rates`` unless given.
    """

    def __init__(
        self,
        fleet: Fleet,
        rates: Rates,
        *,
        clock: Clock,
        settings: LimitSettings | None = None,
        make: Callable[[], Limit] | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._fleet = fleet
        self._rates = rates
        self._clock = clock
        self._settings = settings or LimitSettings()
        self._make = make or (lambda: AimdLimit(rates.slots, self._settings))
        self._sink = sink or NullSink()
        self._seen: tuple[Replica, ...] = ()
        self._records: dict[Replica, _Record] = {}
        self.changed: Callable[[], None] = _nothing

    def of(self, replica: Replica) -> float:
        """Return the limit of a replica in sequences."""
        return self._at(replica).limit.value

    def total(self, rotation: Iterable[Replica]) -> float:
        """Return the sum over the replicas in rotation: it falls at the instant at which one leaves."""
        return sum(self._at(replica).limit.value for replica in rotation)

    def in_use(self, replica: Replica) -> int:
        """Return the sequences that the replica holds now."""
        return self._at(replica).in_use

    def has_room(self, replica: Replica, sequences: int = 1) -> bool:
        """Tell whether so many more sequences are within the replica's limit."""
        record = self._at(replica)
        return record.in_use + sequences <= record.limit.value

    # --- what attempts show ------------------------------------------------------------------------------

    def started(self, attempt: ObservedAttempt) -> None:
        record = self._at(attempt.replica)
        record.in_use += attempt.work.sequences
        record.prompt_tokens += attempt.work.prompt_tokens
        # What is being prefilled ahead of it is no fault of the number of sequences; what waits for a slot there is.
        has_slot = record.in_use <= self._rates.slots
        expected_s = self._rates.unloaded_ttft_s(
            record.prompt_tokens if has_slot else attempt.work.prompt_tokens
        )
        record.begun[attempt] = _Begun(record.in_use, max(expected_s, _LEAST_EXPECTED_S))

    def first_token(self, attempt: ObservedAttempt) -> None:
        record = self._records.get(attempt.replica)
        begun = record.begun.get(attempt) if record is not None else None
        if record is None or begun is None or attempt.ttft_s is None:
            return
        record.prompt_tokens -= attempt.work.prompt_tokens
        ratio = attempt.ttft_s / begun.expected_ttft_s
        self._sample(attempt, record, Sample(attempt.started_at, begun.in_use, ttft_ratio=ratio))

    def ended(self, attempt: ObservedAttempt, error: AttemptError | None) -> None:
        record = self._records.get(attempt.replica)
        begun = record.begun.pop(attempt, None) if record is not None else None
        if record is None or begun is None:
            return
        in_use = max(begun.in_use, record.in_use)  # output is slowed by those, too, that came later
        record.in_use -= attempt.work.sequences
        if attempt.first_token_at is None:
            record.prompt_tokens -= attempt.work.prompt_tokens
        outcome = self._outcome(attempt, begun, error)
        tpot_s = attempt.tpot_s if attempt.tokens >= _LEAST_TPOT_TOKENS * attempt.work.sequences else None
        ratio = None
        if tpot_s is not None:
            ratio = tpot_s * attempt.work.sequences / self._rates.tpot_s
        self._sample(attempt, record, Sample(attempt.started_at, in_use, outcome=outcome, tpot_ratio=ratio))

    def _outcome(self, attempt: ObservedAttempt, begun: _Begun, error: AttemptError | None) -> Outcome:
        """Return how the attempt closes; a caller who gave up while it waited tells how long it waited at least."""
        if attempt.outcome == "cancelled" and attempt.first_token_at is None:
            waited_s = self._clock.now() - attempt.started_at
            too_long = waited_s > self._settings.slow_ttft * begun.expected_ttft_s
            return Outcome.DROPPED if too_long else Outcome.IGNORED
        return Outcome.IGNORED if attempt.outcome == "cancelled" else outcome_of(error)

    def _sample(self, attempt: ObservedAttempt, record: _Record, sample: Sample) -> None:
        before = record.limit.value
        reason = record.limit.sample(sample, self._clock.now())
        value = record.limit.value
        if reason:
            record.fallen_from = max(before, record.fallen_from or 0.0)
            self._sink.emit(LimitChanged(attempt.replica.name, round(value, 2), reason))
        elif record.fallen_from is not None and value >= record.fallen_from:
            record.fallen_from = None
            self._sink.emit(LimitChanged(attempt.replica.name, round(value, 2), "recovered"))
        if value > before:
            self.changed()

    def _at(self, replica: Replica) -> _Record:
        if self._fleet.replicas is not self._seen:
            self._seen = self._fleet.replicas
            self._records = {one: self._records.get(one) or _Record(self._make()) for one in self._seen}
        record = self._records.get(replica)
        # One that the fleet has just lost may still be asked for; it gets no record, so that none stays behind.
        return _Record(self._make()) if record is None else record


def _nothing() -> None:
    """Nobody waits for a change."""
