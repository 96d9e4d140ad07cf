"""Takes a replica out of rotation while it does worse than the others.

The judgement is passive: it rests on what real calls saw, so that a replica whose health check is green while it
answers nobody is found too. Four things eject: errors one after the other, a success rate or a latency far from
the others', and no token progress (:mod:`policies.stall` tells of that). An ejection is jittered and grows. Then
the replica is *on trial*: in rotation, but for leased probes only, until enough of them went well. A floor of
replicas always stays in full service: when everybody fails, the fault is probably not theirs. (After Envoy.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from policies.clock import Clock, SystemClock
from policies.errors import AttemptError, AttemptTimeout, EngineStalled
from policies.events import EventSink, NullSink
from policies.fleet import Fleet, Replica
from policies.observe import AttemptObserver, ObservedAttempt
from policies.outlier_rules import Lateness, Latenesses, OutlierSettings
from policies.progress import Reached
from policies.standing import Standings
from policies.window import OutcomeWindow

__all__ = ["OutlierDetection", "OutlierSettings"]


class _Record:
    """What was seen of one replica lately."""

    __slots__ = ("errors", "latenesses", "outcomes")

    def __init__(self, settings: OutlierSettings) -> None:
        success, latency = settings.success, settings.latency
        self.errors = 0
        self.outcomes = OutcomeWindow(most=success.most_attempts, age_s=success.window_s)
        self.latenesses = Latenesses(age_s=latency.window_s, most=latency.most_samples)


class _Traffic:
    """The attempts that a replica has in flight; kept while there are any."""

    __slots__ = ("attempts", "token_at")

    def __init__(self) -> None:
        self.attempts: dict[ObservedAttempt, None] = {}
        self.token_at = float("-inf")
        """When the last token came in an attempt that is over."""


def _nothing(_: Replica) -> None:
    pass


class OutlierDetection(AttemptObserver):
    """Keeps a record a replica; a replica that discovery removes and adds again starts with a clean one.

    It learns as an observer of attempts; where there are none, :meth:`failed` and :meth:`succeeded` tell it.
    ``on_return`` is told of each replica that is in full service again.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Clock | None = None,
        settings: OutlierSettings | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
        on_return: Callable[[Replica], None] = _nothing,
    ) -> None:
        self._fleet = fleet
        self._clock = clock or SystemClock()
        self._settings = settings or OutlierSettings()
        self._known = fleet.replicas
        self._records: dict[Replica, _Record] = {}
        self._traffic: dict[Replica, _Traffic] = {}
        self._standings = Standings(
            fleet,
            self._settings,
            clock=self._clock,
            rng=rng or random.Random(),
            sink=sink or NullSink(),
            on_return=on_return,
        )

    # --- who may be asked --------------------------------------------------------------------------------

    def rotation(self) -> Sequence[Replica]:
        """Return the known replicas that are not ejected; some may be on trial."""
        return self._standings.rotation()

    def admitted(self, candidates: Sequence[Replica]) -> Sequence[Replica]:
        """Return those of the candidates that are in full service, or on trial with a probe to spare."""
        return self._standings.admitted(candidates)

    def is_suspect(self, replica: Replica) -> bool:
        """Tell whether the last that was seen of the replica was a failure."""
        record = self._records.get(replica)
        return record is not None and record.errors > 0

    # --- what attempts tell ------------------------------------------------------------------------------

    def started(self, attempt: ObservedAttempt) -> None:
        """Count it among the probes, if its replica is on trial."""
        self._traffic.setdefault(attempt.replica, _Traffic()).attempts[attempt] = None
        trial = self._standings.trial(attempt.replica)
        if trial is not None:
            trial.sent(attempt)

    def first_token(self, attempt: ObservedAttempt) -> None:
        """Hold the time to it against what was expected, and against the others."""
        replica, ttft_s, expected_s = attempt.replica, attempt.ttft_s, attempt.expected_ttft_s
        if ttft_s is None or expected_s is None or self._standings.is_out(replica):
            return
        record = self._record_of(replica)
        if record is None:
            return
        lateness, rule, now = Lateness.of(ttft_s, expected_s), self._settings.latency, self._clock.now()
        others = [one.latenesses for other, one in self._records.items() if other is not replica]
        trial = self._standings.trial(replica)
        if trial is None:
            record.latenesses.add(now, lateness)
            reason = rule.finds(record.latenesses, others, now)
            if reason is not None:
                self._eject(replica, reason)
        elif trial.heard_of(attempt):
            usual = rule.usual(others, now)
            self._probed(replica, late=usual is not None and rule.is_late(lateness, usual))

    def ended(self, attempt: ObservedAttempt, error: AttemptError | None) -> None:
        """Count how it ended.

        Cancelled ones say nothing, nor do those sent before their replica returned, nor does waiting in vain at a
        replica that is busy, which is no illness: behind full batch slots, or while others got tokens from it.
        """
        replica = attempt.replica
        busy = self._is_busy(attempt)
        trial = self._standings.trial(replica)
        probe = trial is not None and trial.heard_of(attempt)
        if error is not None and not (busy and _waited_in_vain(error)):
            if trial is None or probe or attempt.started_at >= trial.began_at:
                self.failed(replica, error)
        elif attempt.outcome == "ok":
            self._went_well(replica)
            if probe:
                self._probed(replica, late=False)

    def succeeded(self, replica: Replica) -> None:
        """An attempt on the replica ended well; for those who do not observe attempts."""
        self._went_well(replica)
        self._probed(replica, late=False)

    def failed(self, replica: Replica, error: AttemptError) -> None:
        """An attempt on the replica failed; errors that are not its fault are left out."""
        if not error.counts_against_replica or self._standings.is_out(replica):
            return  # one sent before the replica was ejected is already accounted for
        record = self._record_of(replica)
        if record is None:
            return
        silent = isinstance(error, AttemptTimeout) and error.reached is Reached.NOTHING
        record.errors += self._settings.silent_errors if silent else 1
        record.outcomes.add(self._clock.now(), bad=True)
        if self._standings.trial(replica) is not None:
            self._eject(replica, f"failed on its return with a {type(error).__name__}")
        elif record.errors >= self._settings.consecutive_errors:
            self._eject(replica, f"consecutive errors, the last a {type(error).__name__}")
        else:
            reason = self._settings.success.finds(record.outcomes, self._outcomes_but_of(replica))
            if reason is not None:
                self._eject(replica, reason)

    def stalled(self, replica: Replica, reason: str) -> bool:
        """The replica gives no token; return whether it is out of rotation now."""
        return self._eject(replica, f"no token progress: {reason}")

    # --- what follows ------------------------------------------------------------------------------------

    def _went_well(self, replica: Replica) -> None:
        if self._standings.is_out(replica):
            return
        record = self._record_of(replica)
        if record is not None:
            record.errors = 0
            record.outcomes.add(self._clock.now(), bad=False)
            self._standings.went_well(replica)

    def _is_busy(self, attempt: ObservedAttempt) -> bool:
        """Take the attempt out of those in flight; tell whether its replica was busy rather than silent meanwhile."""
        since = attempt.started_at
        alive = attempt.progress.reached is Reached.HEADERS and attempt.expected_ttft_s is None
        traffic = self._traffic.get(attempt.replica)
        if traffic is None:
            return alive
        traffic.attempts.pop(attempt, None)
        if attempt.tokens:
            traffic.token_at = max(traffic.token_at, attempt.progress.last_at)
        if not traffic.attempts:
            del self._traffic[attempt.replica]
        return (
            alive
            or traffic.token_at > since
            or any(one.tokens and one.progress.last_at > since for one in traffic.attempts)
        )

    def _probed(self, replica: Replica, *, late: bool) -> None:
        trial = self._standings.trial(replica)
        if trial is None:
            return
        trial.late += late
        trial.good += not late
        if trial.late >= self._settings.late_probes:
            self._eject(replica, "still slow on its return")
        elif trial.good >= self._settings.good_probes:
            self._standings.end_trial(replica)

    def _eject(self, replica: Replica, reason: str) -> bool:
        out = self._standings.eject(replica, reason)
        if out:
            self._records.pop(replica, None)
        return out

    def _record_of(self, replica: Replica) -> _Record | None:
        """Return the replica's record; None when discovery does not know it any more."""
        if self._fleet.replicas is not self._known:
            self._known = self._fleet.replicas
            self._records = {one: kept for one, kept in self._records.items() if one in self._known}
        record = self._records.get(replica)
        if record is None and replica in self._known:
            record = self._records[replica] = _Record(self._settings)
        return record

    def _outcomes_but_of(self, replica: Replica) -> list[OutcomeWindow]:
        now = self._clock.now()
        others = [one.outcomes for other, one in self._records.items() if other is not replica]
        for outcomes in others:
            outcomes.forget(now)
        return others


def _waited_in_vain(error: AttemptError) -> bool:
    """Tell whether a time-out came before the first token, with nothing known of why."""
    late = isinstance(error, AttemptTimeout) and not isinstance(error, EngineStalled)
    return late and error.reached < Reached.FIRST_TOKEN
