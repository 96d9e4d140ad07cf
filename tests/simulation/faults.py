"""Carries out the planned faults: what happens to a replica, and what discovery learns of it and when."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from policies.fleet import Fleet, Replica
from tests.simulation.bottom import Bottom
from tests.simulation.plan import FaultPlan, Plan
from tests.simulation.replica_model import ModelReplica
from tests.simulation.trace import Trace


class Stand:
    """The replicas, as they are and as discovery sees them. A place is taken by one incarnation after another."""

    def __init__(self, plan: Plan, fleet: Fleet, bottom: Bottom, trace: Trace) -> None:
        self._plan = plan
        self._fleet = fleet
        self._bottom = bottom
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._incarnations = [0] * plan.replicas.count
        self._here: list[ModelReplica] = []
        self._known: list[Replica | None] = []
        for place in range(plan.replicas.count):
            self._here.append(self._new(place))
            self._known.append(self._entry(place))
        self._tell()
        for fault in plan.faults:
            self._loop.call_at(fault.at_s, self._begin, fault)

    def model_of(self, replica: Replica) -> ModelReplica:
        """Return the model behind an entry of the fleet."""
        return self._bottom.replicas[replica.address]

    @property
    def models(self) -> list[ModelReplica]:
        """Return those that are there now."""
        return self._here

    def _new(self, place: int) -> ModelReplica:
        name = f"r{place}i{self._incarnations[place]}"
        rng = random.Random(f"replica/{self._plan.seed}/{name}")
        made = self._bottom.replicas[name] = ModelReplica(name, self._plan.replicas, rng, self._loop)
        return made

    def _entry(self, place: int) -> Replica:
        return Replica(f"r{place}", self._here[place].name)

    def _tell(self) -> None:
        self._fleet.update(one for one in self._known if one is not None)

    def _begin(self, fault: FaultPlan) -> None:
        for place in fault.places:
            if fault.kind in ("kill", "black_hole"):
                self._kill(place, fault)
            else:
                self._strike(self._here[place], fault)

    def _strike(self, replica: ModelReplica, fault: FaultPlan) -> None:
        if replica.dead:
            return
        self._trace.note(f"fault {fault.kind} begins on {replica.name}")
        # A copy, so that two like faults are two; the list is searched by identity when one ends.
        mine = replace(fault)
        replica.conditions.active.append(mine)
        replica.changed()
        self._loop.call_later(fault.for_s, self._end, replica, mine)

    def _end(self, replica: ModelReplica, fault: FaultPlan) -> None:
        self._trace.note(f"fault {fault.kind} ends on {replica.name}")
        replica.conditions.active = [one for one in replica.conditions.active if one is not fault]
        replica.changed()

    def _kill(self, place: int, fault: FaultPlan) -> None:
        replica = self._here[place]
        if replica.dead:
            return
        self._trace.note(f"fault {fault.kind}: {replica.name} dies")
        replica.kill(black_hole=fault.kind == "black_hole")
        self._loop.call_later(fault.detected_s, self._gone, place)
        self._loop.call_later(fault.detected_s + fault.for_s, self._back, place)

    def _gone(self, place: int) -> None:
        self._known[place] = None
        self._tell()

    def _back(self, place: int) -> None:
        self._incarnations[place] += 1
        self._here[place] = self._new(place)
        self._known[place] = self._entry(place)
        self._trace.note(f"{self._here[place].name} is there")
        self._tell()
