"""Who is in full service, who is ejected, and who is on trial; and the floor that always stays.

Why a replica is ejected is decided elsewhere (:mod:`policies.outlier`). Here is what follows from it: a time out
of rotation that is jittered and grows, then a trial by leased probes, then full service. Only replicas in full
service count for the floor, so that one on trial is never the only one left and its lease never in anybody's way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from policies.clock import Clock
from policies.events import Ejected, EventSink, Returned
from policies.fleet import Fleet, Replica
from policies.growth import doubled_s, spread_s
from policies.outlier_rules import OutlierSettings
from policies.trial import Trial


class _Standing:
    """Of a replica that was ejected before. It is out while ``out_until`` is set, on trial while ``trial`` is."""

    __slots__ = ("ejections", "forgiven_at", "out_until", "trial")

    def __init__(self) -> None:
        self.ejections = 0
        self.forgiven_at = 0.0
        self.out_until: float | None = None
        self.trial: Trial | None = None


class Standings:
    """Of all known replicas; those that were never ejected take no memory. ``on_return`` hears of ended trials."""

    def __init__(
        self,
        fleet: Fleet,
        settings: OutlierSettings,
        *,
        clock: Clock,
        rng: random.Random,
        sink: EventSink,
        on_return: Callable[[Replica], None],
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._on_return = on_return
        self._known = fleet.replicas
        self._standings: dict[Replica, _Standing] = {}
        self._out = 0
        self._on_trial = 0

    def rotation(self) -> Sequence[Replica]:
        """Return the known replicas that are not ejected; some may be on trial."""
        replicas = self._fleet.replicas
        if replicas is not self._known:
            self._fleet_changed()
        if self._out == 0:
            return replicas
        self._let_return()
        return [replica for replica in replicas if not self.is_out(replica)]

    def admitted(self, candidates: Sequence[Replica]) -> Sequence[Replica]:
        """Return those of the candidates that are in full service, or on trial with a probe to spare."""
        if self._out == self._on_trial == 0:
            return candidates
        return [replica for replica in candidates if self._admits(replica)]

    def is_out(self, replica: Replica) -> bool:
        """Tell whether the replica is ejected now."""
        standing = self._standings.get(replica)
        return standing is not None and standing.out_until is not None

    def trial(self, replica: Replica) -> Trial | None:
        """Return the trial that the replica is on; None when it is on none."""
        standing = self._standings.get(replica)
        return None if standing is None else standing.trial

    def went_well(self, replica: Replica) -> None:
        """An attempt ended well: after long enough, earlier ejections are forgiven."""
        standing = self._standings.get(replica)
        if standing is not None and not _is_away(standing) and self._clock.now() >= standing.forgiven_at:
            del self._standings[replica]

    def eject(self, replica: Replica, reason: str) -> bool:
        """Take the replica out if enough others stay in full service; return whether it is out now."""
        if self._fleet.replicas is not self._known:
            self._fleet_changed()
        if replica not in self._known or self.is_out(replica):
            return True
        trial = self.trial(replica)
        if self._in_full_service() - (trial is None) < self._floor():
            return False
        standing = self._standings.setdefault(replica, _Standing())
        for_s = spread_s(self._for_s(standing), self._settings.jitter, self._rng)
        self._on_trial -= trial is not None
        self._out += 1
        standing.trial = None
        standing.ejections += 1
        standing.out_until = self._clock.now() + for_s
        self._sink.emit(Ejected(replica.name, reason, for_s))
        return True

    def end_trial(self, replica: Replica) -> None:
        """The replica has proved itself: it is in full service again."""
        standing = self._standings.get(replica)
        if standing is not None and standing.trial is not None:
            standing.trial = None
            standing.forgiven_at = self._clock.now() + self._for_s(standing)
            self._on_trial -= 1
            self._on_return(replica)

    def _admits(self, replica: Replica) -> bool:
        standing = self._standings.get(replica)
        if standing is None:
            return True
        return standing.out_until is None and (standing.trial is None or standing.trial.has_room)

    def _for_s(self, standing: _Standing) -> float:
        return doubled_s(self._settings.base_s, self._settings.max_s, standing.ejections)

    def _let_return(self) -> None:
        """Put those on trial whose time is up."""
        now = self._clock.now()
        for replica, standing in self._standings.items():
            if standing.out_until is not None and standing.out_until <= now:
                self._end_ejection(replica, standing)

    def _end_ejection(self, replica: Replica, standing: _Standing) -> None:
        settings = self._settings
        standing.out_until = None
        standing.trial = Trial(self._clock, most=settings.probes, lease_s=settings.lease_s)
        self._out -= 1
        self._on_trial += 1
        self._sink.emit(Returned(replica.name))

    def _fleet_changed(self) -> None:
        """Forget replicas that are gone; put some back if those that stay are too few."""
        self._known = self._fleet.replicas
        for replica in [one for one in self._standings if one not in self._known]:
            standing = self._standings.pop(replica)
            self._out -= standing.out_until is not None
            self._on_trial -= standing.trial is not None
        missing = self._floor() - self._in_full_service()
        away = [(one.out_until or 0.0, replica) for replica, one in self._standings.items() if _is_away(one)]
        for _, replica in sorted(away, key=lambda entry: entry[0])[: max(0, missing)]:
            standing = self._standings[replica]
            if standing.out_until is not None:
                self._end_ejection(replica, standing)
            self.end_trial(replica)

    def _in_full_service(self) -> int:
        return len(self._known) - self._out - self._on_trial

    def _floor(self) -> int:
        return max(1, math.ceil(self._settings.floor_share * len(self._known)))


def _is_away(standing: _Standing) -> bool:
    return standing.out_until is not None or standing.trial is not None
