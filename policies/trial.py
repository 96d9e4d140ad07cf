"""The trial of a replica that returns from an ejection: a few leased probes decide whether it stays."""

from __future__ import annotations

from policies.clock import Clock
from policies.leases import Lease, Leases
from policies.observe import ObservedAttempt


class Trial:
    """At most ``most`` probes at a time; one that is never heard of again gives its lease back after ``lease_s``."""

    __slots__ = ("_held", "_leases", "began_at", "good", "late")

    def __init__(self, clock: Clock, *, most: int, lease_s: float) -> None:
        self._leases = Leases(clock, most=most, lease_s=lease_s)
        self._held: dict[ObservedAttempt, Lease] = {}
        self.began_at = clock.now()
        self.good = 0
        """Probes that went well."""
        self.late = 0
        """Probes that were answered too late."""

    @property
    def has_room(self) -> bool:
        """Tell whether one more probe may be sent."""
        return self._leases.free > 0

    def sent(self, attempt: ObservedAttempt) -> None:
        """An attempt is being made on the replica; it is a probe if there is a lease for it."""
        lease = self._leases.take()
        if lease is not None:
            self._held[attempt] = lease

    def heard_of(self, attempt: ObservedAttempt) -> bool:
        """Give the attempt's lease back; False when it is no probe, or was one for too long."""
        lease = self._held.pop(attempt, None)
        return lease is not None and lease.give_back()
