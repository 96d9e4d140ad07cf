"""Which replicas there are. Discovery writes it, policies read it.

A replica is compared by identity: one that goes and comes back, even under the same name, is another object,
so that nothing that was held against its predecessor (errors, ejections, outstanding work) sticks to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from policies.events import EventSink, NullSink, ReplicaAdded, ReplicaRemoved


@dataclass(frozen=True, eq=False, slots=True)
class Replica:
    """One incarnation of a replica. ``address`` is opaque to the policies."""

    name: str
    address: str = ""


class Fleet:
    """The replicas that discovery knows at present, in a stable order."""

    def __init__(self, replicas: Iterable[Replica] = (), sink: EventSink | None = None) -> None:
        self._sink = sink or NullSink()
        self._replicas: tuple[Replica, ...] = tuple(replicas)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Every known replica, healthy or not."""
        return self._replicas

    def __contains__(self, replica: object) -> bool:
        return replica in self._replicas

    def update(self, wanted: Iterable[Replica]) -> None:
        """Make ``wanted`` the fleet; a replica that is already there under the same name and address stays.

        Raises:
            ValueError: two of them have the same name.
        """
        present = {(replica.name, replica.address): replica for replica in self._replicas}
        new = tuple(present.get((one.name, one.address), one) for one in wanted)
        if len({replica.name for replica in new}) != len(new):
            raise ValueError(f"replicas {[replica.name for replica in new]} have names in common")
        old, self._replicas = self._replicas, new
        for replica in old:
            if replica not in new:
                self._sink.emit(ReplicaRemoved(replica.name))
        for replica in new:
            if replica not in old:
                self._sink.emit(ReplicaAdded(replica.name))
