"""Spreads calls so that no replica is given more than its own limit while another has room.

The sum of the limits is guarded by admission; this keeps to the parts. Without it a replica whose limit has fallen
because it is slow would go on to get its full share of what the others make room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.balance import NO_WORK, Balancer
from policies.fleet import Replica
from policies.replica_limits import ReplicaLimits
from policies.work import Work


class WithinLimits:
    """A balancer around another one. Where every replica is full, all of them are candidates again."""

    def __init__(self, inner: Balancer, limits: ReplicaLimits) -> None:
        self._inner = inner
        self._limits = limits

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False, work: Work = NO_WORK) -> Replica:
        """Return one of those that have room, as the inner balancer chooses."""
        has_room = self._limits.has_room
        within = [one for one in candidates if has_room(one, work.sequences)]
        return self._inner.pick(within or candidates, retry=retry, work=work)
