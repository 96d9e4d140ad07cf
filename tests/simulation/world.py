"""One run of a seed: the whole pipeline, modelled replicas and clients, from the first arrival to a quiet end.

Time is virtual, every choice is the seed's, and nothing outside takes part: a seed runs the same way for ever.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any

from policies.clock import SystemClock
from policies.fleet import Fleet
from policies.parts import Surroundings
from policies.priority import Priority
from policies.profiles import OPTIONAL, POLICIES, Pipeline, build
from policies.rates import RatePriors, Rates
from policies.work import WorkLedger
from tests.fakes.virtual_time import VirtualTimeLoop
from tests.simulation.bottom import Bottom
from tests.simulation.clients import Client
from tests.simulation.faults import Stand
from tests.simulation.invariants import INVARIANTS
from tests.simulation.judging import Invariant, Violation
from tests.simulation.plan import FREEZING, QUIET_FROM_S, CallPlan, Plan, draw
from tests.simulation.planted import planted
from tests.simulation.trace import Trace

DRAIN_S = 150.0
"""Every call is over by then: nothing in a profile lets one wait longer."""
REST_S = 120.0
"""Quiet after the drain, longer than any ejection: then the service has to be as good as new."""
RECOVERY_CALLS = 8
MOST_VIOLATIONS = 20
TICK_S = 0.1


@dataclass(slots=True, eq=False)
class World:
    """What invariants look at."""

    plan: Plan
    trace: Trace
    fleet: Fleet
    around: Surroundings
    pipeline: Pipeline[tuple[int, ...]]
    bottom: Bottom
    stand: Stand
    clients: dict[str, Client]
    """By request id."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a run went. ``digest`` is that of its trace."""

    seed: int
    plant: str | None
    violations: tuple[Violation, ...]
    digest: str
    trace: Trace
    outcomes: dict[str, int]
    attempts: int


def run_world(seed: int, plant: str | None = None) -> Report:
    """Run a seed; ``plant`` names a bug of :mod:`tests.simulation.planted` to run it with."""
    plan = draw(seed, POLICIES, OPTIONAL)
    with planted(plant), asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(blind=True)) as runner:
        return runner.run(_Run(plan, plant).play())


class _Run:
    def __init__(self, plan: Plan, plant: str | None) -> None:
        self._plan = plan
        self._plant = plant
        self._trace = Trace()
        self._invariants: list[Invariant] = []
        self._violations: list[Violation] = []

    async def play(self) -> Report:
        world = self._world = self._make()
        self._invariants = [kind(world, self._violated) for kind in INVARIANTS]
        self._trace.heard_by = [one.heard for one in self._invariants if one.listens]
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unhandled)
        self._look_next(list(reversed(self._plan.looks)))
        if any(fault.kind in FREEZING for fault in self._plan.faults):
            self._tick()
        for client in world.clients.values():
            loop.call_at(client.plan.at_s, client.arrive)
        await asyncio.sleep(QUIET_FROM_S)
        await self._until_over(DRAIN_S)
        self._look()
        await asyncio.sleep(REST_S)
        await self._recover()
        for one in self._invariants:
            one.at_end()
        if self._trace.failure is not None:
            raise self._trace.failure
        clients = world.clients.values()
        outcomes: dict[str, int] = {}
        for client in clients:
            for how in client.endings:
                outcomes[how] = outcomes.get(how, 0) + 1
        return Report(
            self._plan.seed,
            self._plant,
            tuple(self._violations),
            self._trace.digest(),
            self._trace,
            dict(sorted(outcomes.items())),
            len(world.bottom.made),
        )

    def _make(self) -> World:
        plan, trace, clock = self._plan, self._trace, SystemClock()
        fleet, bottom = Fleet(sink=trace), Bottom(trace)
        stand = Stand(plan, fleet, bottom, trace)
        rates = Rates(clock, RatePriors(slots=plan.replicas.slots))
        rng = random.Random(f"product/{plan.seed}")
        around = Surroundings(fleet, WorkLedger(), rates, clock, rng, trace)
        pipeline = build("resilient", bottom, around, plan.knobs, without=plan.without, extra=plan.extra)
        clients = {one.request_id: Client(one, pipeline, rates.arrived, trace.note) for one in plan.calls}
        return World(plan, trace, fleet, around, pipeline, bottom, stand, clients)

    async def _until_over(self, within_s: float) -> None:
        tasks = [client.task for client in self._world.clients.values() if client.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        for client in self._world.clients.values():
            if not client.endings and client.task is not None:
                self._violated(
                    "every call ends", f"{client.plan.request_id} still waits after {within_s:g} s"
                )
                client.task.cancel()

    async def _recover(self) -> None:
        """Ask again, long after the last fault, and expect nothing but good answers."""
        world, first, replicas = self._world, len(self._plan.calls), self._plan.replicas
        takes_s = replicas.prefill_base_s + (_RECOVERY_CALL.output_tokens + 2) * replicas.step_s
        every_s = max(0.25, 2.0 * takes_s / (replicas.count * replicas.slots))  # half of what they can do
        for n in range(first, first + RECOVERY_CALLS):
            plan = replace(_RECOVERY_CALL, n=n, at_s=asyncio.get_running_loop().time())
            client = Client(plan, world.pipeline, world.around.rates.arrived, self._trace.note)
            world.clients[plan.request_id] = client
            client.arrive()
            await asyncio.sleep(every_s)
        await self._until_over(60.0)
        for n in range(first, first + RECOVERY_CALLS):
            client = world.clients[f"c{n:03d}"]
            if client.endings != ["ok"]:
                text = f"{client.plan.request_id} asked long after the last fault and got {client.error!r}"
                self._violated("service recovers", text)

    def _look(self) -> None:
        for one in self._invariants:
            one.look()

    def _look_next(self, looks: list[float]) -> None:
        """Look at each of the instants, which come last first."""
        loop = asyncio.get_running_loop()
        if looks and looks[-1] <= loop.time():
            looks.pop()
            self._look()
        if looks:
            loop.call_at(looks[-1], self._look_next, looks)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._invariants:
            one.tick()
        if loop.time() < QUIET_FROM_S:
            loop.call_later(TICK_S, self._tick)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what no caller sees: an error in a timer, or in a task that nobody awaits."""
        self._violated("nothing is swallowed", repr(context.get("exception") or context["message"]))

    def _violated(self, name: str, text: str) -> None:
        if len(self._violations) < MOST_VIOLATIONS:
            self._violations.append(Violation(name, asyncio.get_running_loop().time(), text))
            self._trace.note(f"VIOLATED {name}: {text}")


_RECOVERY_CALL = CallPlan(
    n=0,
    at_s=0.0,
    prompt_tokens=50,
    max_tokens=8,
    output_tokens=8,
    estimate=8,
    stream=True,
    idempotent=True,
    priority=Priority.CRITICAL,
    tenant="acme",
    service_class="interactive",
    within_s=30.0,
    leaves_after_s=None,
    pause_at=None,
    pause_s=0.0,
    resumable=True,
    degradable=False,
)
