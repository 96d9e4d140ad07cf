"""Gives a replica that is new or has returned its full share of the work only bit by bit.

Its caches are cold, and whatever made it ill may not be over: at once it would be the least loaded of all and get
every call. Its weight rises from a part to 1 within a few seconds; balancers divide its costs by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.clock import Clock, SystemClock
from policies.fleet import Fleet, Replica


@dataclass(frozen=True, slots=True)
class SlowStartSettings:
    """The weight rises from ``from_weight`` to 1 in ``rise_s`` seconds, evenly."""

    from_weight: float = 0.2
    rise_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.from_weight <= 1:
            raise ValueError(f"from_weight is {self.from_weight}: it must be over 0 and at most 1")
        if not self.rise_s > 0:
            raise ValueError(f"rise_s is {self.rise_s}: it must be over 0")


class SlowStart:
    """Knows the weight of each replica. Those of the first fleet start with their full weight: all are alike."""

    def __init__(
        self, fleet: Fleet, settings: SlowStartSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self._fleet = fleet
        self._settings = settings or SlowStartSettings()
        self._clock = clock or SystemClock()
        self._known = fleet.replicas
        self._rising: dict[Replica, float] = {}

    def weight(self, replica: Replica) -> float:
        """Return the replica's weight, over 0 and at most 1."""
        if self._fleet.replicas is not self._known:
            self._fleet_changed()
        if not self._rising:
            return 1.0
        began_at = self._rising.get(replica)
        if began_at is None:
            return 1.0
        settings = self._settings
        done = (self._clock.now() - began_at) / settings.rise_s
        if done >= 1.0:
            del self._rising[replica]
            return 1.0
        return settings.from_weight + (1.0 - settings.from_weight) * done

    def returned(self, replica: Replica) -> None:
        """The replica has come back; it starts from below."""
        self._rising[replica] = self._clock.now()

    def _fleet_changed(self) -> None:
        replicas = self._fleet.replicas
        known, self._known = self._known, replicas
        for gone in [replica for replica in self._rising if replica not in replicas]:
            del self._rising[gone]
        if known:
            for replica in replicas:
                if replica not in known:
                    self.returned(replica)
