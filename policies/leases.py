"""A bounded number of permissions that come back by themselves.

Probes of something that was ill must be few, and must not be able to get lost: a probe whose task was forgotten,
or hangs for ever, would else hold its permission for ever, and what it was to probe would stay shut.
"""

from __future__ import annotations

from policies.clock import Clock


class Lease:
    """One permission. Give it back when the probe is over, however it ended; safe twice."""

    __slots__ = ("_leases",)

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def give_back(self) -> bool:
        """Give it back; False when it had come back before, by time or by hand."""
        return self._leases._returned(self)


class Leases:
    """At most ``most`` leases at a time, each for ``lease_s`` at most."""

    def __init__(self, clock: Clock, *, most: int = 1, lease_s: float = 10.0) -> None:
        if most < 1:
            raise ValueError(f"most is {most}: it must be at least 1, or nothing is ever probed")
        if not lease_s > 0:
            raise ValueError(f"lease_s is {lease_s}: it must be over 0")
        self._clock = clock
        self._most = most
        self._lease_s = lease_s
        self._until: dict[Lease, float] = {}

    @property
    def free(self) -> int:
        """Return how many could be taken now."""
        self._expire()
        return self._most - len(self._until)

    def take(self) -> Lease | None:
        """Return a lease, or None when all are out."""
        if self.free <= 0:
            return None
        lease = Lease(self)
        self._until[lease] = self._clock.now() + self._lease_s
        return lease

    def next_free_in_s(self) -> float:
        """Return the seconds after which one is free at the latest; 0 when one is."""
        if self.free > 0:
            return 0.0
        return max(0.0, next(iter(self._until.values())) - self._clock.now())

    def _expire(self) -> None:
        now = self._clock.now()
        while self._until:
            oldest = next(iter(self._until))
            if self._until[oldest] > now:
                return
            del self._until[oldest]

    def _returned(self, lease: Lease) -> bool:
        self._expire()
        return self._until.pop(lease, None) is not None
