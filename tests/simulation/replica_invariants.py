"""How the pipeline treats replicas: who is in rotation, who is left alone, and who gets another chance."""

from __future__ import annotations

from typing import Any, ClassVar

from policies.errors import NoReplica
from policies.events import AttemptStarted, Ejected, Event, Hedged, Refused, ReplicaRemoved, Returned
from tests.simulation.bottom import InFlight
from tests.simulation.judging import Invariant
from tests.simulation.plan import floor_of


class FloorKept(Invariant):
    """Some replicas stay in rotation, whatever happens to them all; nobody is told otherwise."""

    name: ClassVar[str] = "rotation keeps its floor"
    listens: ClassVar[bool] = True

    def heard(self, at_s: float, event: Event) -> None:
        known = self.world.fleet.replicas
        if isinstance(event, Refused) and event.reason == NoReplica.reason and known:
            self.broken(f"{event.request_id} was told that no replica is there, known are {len(known)}")

    def look(self) -> None:
        known, rotation = self.world.fleet.replicas, self.world.pipeline.rotation()
        if not set(rotation) <= set(known):
            self.broken(
                f"{[one.name for one in rotation]} are in rotation, known are {[one.name for one in known]}"
            )
        if known and not rotation:
            self.broken(f"none of {len(known)} replicas is in rotation")


class AllComeBack(Invariant):
    """Long after the last fault everybody who is known is in rotation again."""

    name: ClassVar[str] = "everybody comes back"

    def at_end(self) -> None:
        rotation = self.world.pipeline.rotation()
        away = [one.name for one in self.world.fleet.replicas if one not in rotation]
        if away:
            self.broken(f"{away} are still out of rotation")


class EjectionKeepsFloor(Invariant):
    """Nobody is ejected when that leaves fewer than the floor."""

    name: ClassVar[str] = "ejection keeps the floor"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.out: set[str] = set()
        self._tried: dict[str, list[str]] = {}

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, Ejected):
            self.out.add(event.replica)
            known = [one.name for one in self.world.fleet.replicas]
            left = [name for name in known if name not in self.out]
            floor = floor_of(self.world.plan.knobs.outlier.floor_share, len(known))
            if len(left) < floor:
                self.broken(
                    f"{event.replica} was ejected, which leaves {left} of {known}: the floor is {floor}"
                )
        elif isinstance(event, Returned | ReplicaRemoved):
            self.out.discard(event.replica)


class EjectedAreLeftAlone(EjectionKeepsFloor):
    """An ejected replica gets no attempt, save from a call that has failed on all others."""

    name: ClassVar[str] = "ejected replicas are left alone"

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, Ejected):
            self.out.add(event.replica)
        elif isinstance(event, Returned | ReplicaRemoved):
            self.out.discard(event.replica)
        elif isinstance(event, AttemptStarted):
            tried = self._tried.setdefault(event.request_id, [])
            rotation = [one.name for one in self.world.fleet.replicas if one.name not in self.out]
            if event.replica in self.out and any(name not in tried for name in rotation):
                self.broken(f"{event.request_id} was sent to {event.replica}, in rotation are {rotation}")
            tried.append(event.replica)


class RetriesGoElsewhere(Invariant):
    """The incarnation of a replica that has just failed a call does not get its next attempt.

    After a hedge two have failed it at about the same time, and which of them was the last is left open.
    """

    name: ClassVar[str] = "retries go elsewhere"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._hedges: set[tuple[str, int]] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, Hedged):
            self._hedges.add((event.request_id, event.attempt))

    def at_end(self) -> None:
        latest: dict[str, InFlight] = {}
        for made in self.world.bottom.made:
            name = made.call.request_id
            before = latest.get(name)
            hedged = before is not None and (name, before.attempt.number) in self._hedges
            if before is not None and before.error and before.replica is made.replica and not hedged:
                self.broken(f"{name} failed on {made.replica.name} and was sent there again")
            latest[name] = made
