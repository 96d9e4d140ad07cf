"""A scenario's faults within one arm: resolved, struck when their condition holds, proven, held, taken back.

Whatever goes wrong with a fault is written down as *not found out*, never passed over: an arm whose fault did not
happen as planned shows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from chaos.admin import AdminError, Held
from chaos.bounds import Bounds
from chaos.experiment import Experiment, FaultPlan
from chaos.faults import FAULTS, Fault, FaultContext
from chaos.faults.force import InForce
from chaos.history import CheckRecord, FaultRecord, Record
from chaos.load.plan import choose_targets
from chaos.names import require
from chaos.undo import UndoLog
from chaos.waiting import sleep_until

CONFIRM_S = 0.001


@dataclass
class Struck:
    """A fault that is in force, and when."""

    fault: Fault
    plan: FaultPlan
    struck_at: float
    injected_at: float


@dataclass
class Strike:
    """The faults of one arm, written to the history as they go."""

    context: FaultContext
    experiment: Experiment
    arm: str
    seed: int
    undo: UndoLog
    bounds: Bounds
    sink: Callable[[Record], None]
    struck: list[Struck] = field(default_factory=list)
    _held: list[InForce] = field(default_factory=list)

    async def resolve(self) -> list[tuple[FaultPlan, Fault]]:
        """Find the targets of every fault, each with its plan.

        Raises:
            UnknownName, FaultError, SubstrateError: one cannot be injected at all.
        """
        found: list[tuple[FaultPlan, Fault]] = []
        for plan, target in await self._targets():
            kind = FAULTS[require("fault", plan.kind, FAULTS)]
            async with asyncio.timeout(self.bounds.resolve_s):
                found.append((plan, await kind.resolve(self.context, target, plan.settings)))
        return found

    async def _targets(self) -> list[tuple[FaultPlan, str]]:
        labels = [link.label for link in await self.context.admin.links()]
        return [
            (plan, target)
            for plan in self.experiment.faults
            for target in choose_targets(plan.target, labels, self.seed, every=plan.every)
        ]

    async def announce(self, at: float, offset_s: float, *, injected: bool) -> None:
        """Write when the faults are due; in the control arm too, where nothing will happen then."""
        for plan, target in await self._targets():
            detail = {"offset_s": offset_s, "when": plan.when, "settings": plan.settings, "planned": injected}
            self.sink(FaultRecord(self.arm, plan.kind, target, "scheduled", at, detail))

    @contextlib.asynccontextmanager
    async def in_force(
        self, faults: list[tuple[FaultPlan, Fault]], scheduled_at: float
    ) -> AsyncIterator[None]:
        """From ``scheduled_at`` on strike each fault as its condition holds; take all back after the block."""
        async with contextlib.AsyncExitStack() as stack:
            limit_s = self.experiment.phases.hold_s + self.bounds.fault_limit_s
            for _, fault in faults:
                held = InForce(fault, self.undo, self.context.substrate.name, limit_s)
                self._held.append(await stack.enter_async_context(held))
            await sleep_until(scheduled_at)
            for (plan, _), held in zip(faults, self._held, strict=True):
                await self._strike(plan, held)
            yield
            await self._take_back()

    async def _strike(self, plan: FaultPlan, held: InForce) -> None:
        fault, seen = held.fault, None
        try:
            if plan.when:
                bound_s = self.experiment.phases.recovery_s
                seen = await self._condition(fault.target, plan, bound_s)
                if seen is None:
                    self._unknown("fault_condition", {"when": plan.when, "bound_s": bound_s})
                    return
            struck_at = time.time()
            await held.inject()
            injected_at = time.time()
        except (AdminError, RuntimeError, TimeoutError, OSError) as error:
            self._unknown("fault_injection", {"error": f"{type(error).__name__}: {error}"})
            return
        detail: dict[str, Any] = {}
        if seen is not None:
            detail = {"awaiting": list(seen.awaiting), "streaming": list(seen.streaming)}
            self._step(fault, "condition", seen.at, detail)
        self._step(fault, "injected", injected_at, {**detail, "took_s": round(injected_at - struck_at, 6)})
        self.struck.append(Struck(fault, plan, struck_at, injected_at))

    async def _condition(self, target: str, plan: FaultPlan, bound_s: float) -> Held | None:
        """Return the moment at which the condition held, and held still when asked again; None within the bound.

        One step of an engine gives several calls a token: one begins to stream, which makes the condition true,
        a millisecond before another, which alone awaited its first token, gets that.
        """
        ends_at = time.monotonic() + bound_s
        while (left_s := ends_at - time.monotonic()) > 0:
            if await self.context.admin.wait(target, plan.when, left_s) is None:
                return None
            if (still := await self.context.admin.wait(target, plan.when, CONFIRM_S)) is not None:
                return still
        return None

    async def verify(self, bound_s: float) -> None:
        """Prove each fault that was struck, all at once, within ``bound_s``."""
        await asyncio.gather(*(self._verify(struck, bound_s) for struck in self.struck))

    async def _verify(self, struck: Struck, bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                proof = await struck.fault.verify()
        except (RuntimeError, TimeoutError, OSError) as error:
            self._unknown("fault_verified", {"error": f"{type(error).__name__}: {error}"})
            return
        if proof.ok:
            self._step(struck.fault, "verified", time.time(), {**proof.detail, "ok": True})
        else:
            self._unknown("fault_verified", {"kind": struck.plan.kind, **proof.detail})

    async def _take_back(self) -> None:
        for held in self._held:
            was_struck = any(struck.fault is held.fault for struck in self.struck)
            try:
                await held.revert()
            except (RuntimeError, TimeoutError, OSError) as error:
                detail = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                self._step(held.fault, "reverted", time.time(), detail)
                raise
            if was_struck:
                detail = {"ok": True, "by_limit": held.expired}
                self._step(held.fault, "reverted", time.time(), detail)
            if held.expired:
                self._unknown("fault_held", {"reason": "its time limit ended it before the scenario did"})

    def _step(self, fault: Fault, step: str, at: float, detail: dict[str, Any]) -> None:
        self.sink(FaultRecord(self.arm, fault.kind, fault.target, step, at, detail))

    def _unknown(self, name: str, detail: dict[str, Any]) -> None:
        self.sink(CheckRecord(self.arm, name, None, time.time(), detail))
