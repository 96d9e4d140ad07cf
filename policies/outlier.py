"""Takes a replica out of rotation while its answers say that it is ill.

The judgement is passive: it rests on what real calls saw (refused or cut connections, time-outs, errors), so
that a replica whose health check is green while it answers nobody is found too. A floor of replicas always
stays: when everybody fails, the fault is probably not theirs. A replica that has failed is *on trial* until it
answers well again: it should get one attempt at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from policies.clock import Clock
from policies.errors import AttemptError, AttemptTimeout
from policies.events import Ejected, EventSink, NullSink, Returned
from policies.fleet import Fleet, Replica
from policies.progress import Reached


@dataclass(frozen=True, slots=True)
class OutlierSettings:
    """``consecutive_errors`` eject; the first ejection lasts ``base_s``, each further one twice as long.

    A time-out on headers counts ``silent_errors`` times, because headers wait for nothing in a healthy replica.
    ``max_s`` caps it, ``jitter`` spreads it by that share either way. At least ``floor_share`` of the known
    replicas, rounded up and never less than one, stay in rotation.
    """

    consecutive_errors: int = 3
    silent_errors: int = 2
    base_s: float = 5.0
    max_s: float = 60.0
    jitter: float = 0.2
    floor_share: float = 0.3

    def __post_init__(self) -> None:
        for name in ("consecutive_errors", "silent_errors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.base_s <= self.max_s:
            raise ValueError(f"base_s={self.base_s} must be over 0 and at most max_s={self.max_s}")
        if not (0 <= self.jitter < 1 and 0 < self.floor_share <= 1):
            raise ValueError(
                f"jitter={self.jitter} must be in [0, 1), floor_share={self.floor_share} in (0, 1]"
            )


@dataclass(slots=True)
class _Record:
    errors: int = 0
    ejections: int = 0
    out_until: float | None = None
    forgiven_at: float = 0.0


class OutlierDetection:
    """Keeps a record a replica; a replica that discovery removes and adds again starts with a clean one."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Clock,
        settings: OutlierSettings | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._settings = settings or OutlierSettings()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._records: dict[Replica, _Record] = {}
        self._out = 0

    def rotation(self) -> Sequence[Replica]:
        """Return the known replicas that are not ejected."""
        replicas = self._fleet.replicas
        if self._out == 0:
            return replicas
        self._refresh(replicas)
        return [replica for replica in replicas if not self._is_out(replica)]

    def is_on_trial(self, replica: Replica) -> bool:
        """Tell whether the last that was seen of the replica was a failure, or that it has just returned."""
        record = self._records.get(replica)
        return record is not None and record.errors > 0

    def succeeded(self, replica: Replica) -> None:
        """An attempt on the replica ended well."""
        record = self._records.get(replica)
        if record is None or record.out_until is not None:
            return
        record.errors = 0
        if self._clock.now() >= record.forgiven_at:
            del self._records[replica]

    def failed(self, replica: Replica, error: AttemptError) -> None:
        """An attempt on the replica failed; errors that are not its fault are left out."""
        if not error.counts_against_replica or replica not in self._fleet:
            return
        record = self._records.setdefault(replica, _Record())
        if record.out_until is not None:
            return  # sent before it was ejected: already accounted for
        silent = isinstance(error, AttemptTimeout) and error.reached is Reached.NOTHING
        record.errors += self._settings.silent_errors if silent else 1
        if record.errors >= self._settings.consecutive_errors:
            self._eject(replica, record, type(error).__name__)

    def _eject(self, replica: Replica, record: _Record, last_error: str) -> None:
        settings = self._settings
        replicas = self._fleet.replicas
        self._refresh(replicas)
        floor = max(1, math.ceil(settings.floor_share * len(replicas)))
        if len(replicas) - self._out - 1 < floor:
            return
        spread = self._rng.uniform(1.0 - settings.jitter, 1.0 + settings.jitter)
        for_s = min(settings.max_s, settings.base_s * 2.0 ** min(record.ejections, 32)) * spread
        record.ejections += 1
        record.out_until = self._clock.now() + for_s
        self._out += 1
        reason = f"consecutive errors, the last a {last_error}"
        self._sink.emit(Ejected(replica.name, reason, for_s))

    def _refresh(self, replicas: Sequence[Replica]) -> None:
        """Forget replicas that are gone and let those return whose time is up."""
        now = self._clock.now()
        for replica in [known for known in self._records if known not in replicas]:
            self._out -= self._records.pop(replica).out_until is not None
        for replica, record in self._records.items():
            if record.out_until is not None and record.out_until <= now:
                record.forgiven_at = now + (self._settings.base_s * 2.0 ** min(record.ejections, 32))
                record.out_until = None
                record.errors = self._settings.consecutive_errors - 1  # one more, and it is out again
                self._out -= 1
                self._sink.emit(Returned(replica.name))

    def _is_out(self, replica: Replica) -> bool:
        record = self._records.get(replica)
        return record is not None and record.out_until is not None
