"""One arm: the planned load against one profile, with or without the faults, and a whole cluster at its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.accounts import AUDIT_COMPLETE, LEDGER_READ, Accounts
from chaos.admin import AdminError
from chaos.bounds import Bounds
from chaos.checks.surroundings import IN_FLIGHT_ZERO, NO_LEFTOVERS, NO_TOXICS, REPLICA_RETURNED
from chaos.events import EventCopier, awaiting_at, first_token_at
from chaos.experiment import Arm, Experiment
from chaos.faults import FaultContext
from chaos.history import CallRecord, CheckRecord, FaultRecord, HistoryWriter, PhaseRecord, Record
from chaos.load.client import LoadClient
from chaos.load.plan import Plan
from chaos.load.surge import Surge
from chaos.machine import MACHINE_ALONE, OTHERS_SHARE, Others
from chaos.progress import Progress
from chaos.recovery import Finding, all_serving, calm, no_leftovers, no_toxic, nothing_in_flight
from chaos.signals import SignalSampler
from chaos.strike import Strike, Struck
from chaos.substrates.local import LocalSubstrate
from chaos.undo import UndoLog
from chaos.waiting import sleep_until

LEAD_S = 0.3
"""Between the preparation of an arm and its first possible call."""
RESOLVE_BEFORE_S = 2.0
"""Targets are found so long before the fault is due, because it takes a moment and they may move."""


@dataclass
class ArmRun:
    """Everything that one arm needs. :meth:`run` writes to ``history`` and returns when the cluster is whole again."""

    context: FaultContext
    client: LoadClient
    experiment: Experiment
    arm: Arm
    plan: Plan
    seed: int
    run_id: str
    replicas: int
    undo: UndoLog
    bounds: Bounds
    progress: Progress
    history: HistoryWriter
    outcomes: Counter[str] = field(default_factory=Counter)
    calls: list[CallRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._surge = Surge(self.plan.rate_per_s, self.plan.extra_per_s)

    def _write(self, record: Record) -> None:
        self.history.write(record)

    def _phase(self, phase: str, at: float) -> None:
        self._write(PhaseRecord(self.arm.name, phase, at))

    def _check(self, name: str, finding: Finding) -> None:
        self._write(CheckRecord(self.arm.name, name, finding.ok, time.time(), finding.detail))
        if finding.ok is not True:
            word = "NOT KNOWN" if finding.ok is None else "NO"
            self.progress.say(f"arm {self.arm.name}: {name}: {word} {finding.detail}")

    def _called(self, record: CallRecord) -> None:
        self.outcomes[record.outcome] += 1
        self.calls.append(record)
        self._write(record)

    async def run(self) -> None:
        """Carry the arm out.

        Raises:
            SubstrateError, FaultError: it could not be; a fault that was injected is reverted all the same.
        """
        name, admin = self.arm.name, self.context.admin
        await admin.set_profile(self.arm.profile, self.arm.without)
        if await admin.revision():
            # Arms ask the same: what one has had computed must not be there for the next.
            await admin.set_revision(f"{self.run_id}-{name}")
        quiet = await calm(admin, self.bounds.calm_s, self.bounds.poll_s)
        if not quiet.ok:
            self._check("calm_before_arm", quiet)
        events = EventCopier(admin, name, self._write)
        await events.begin()
        before = {link.name for link in await admin.replica_links()}
        accounts = Accounts(self.context, self.client, self.experiment, name, self._write)
        await accounts.begin()
        context = replace(self.context, surge=self._surge)
        strike = Strike(context, self.experiment, name, self.seed, self.undo, self.bounds, self._write)
        start_at = time.time() + LEAD_S
        without = f" without {', '.join(self.arm.without)}" if self.arm.without else ""
        calls = self.plan.calls_of(fault=self.arm.fault)
        self.progress.say(
            f"arm {name}: {len(calls)} calls in {self.plan.duration_s:.0f} s, profile "
            f"{self.arm.profile}{without}"
        )
        beside = [SignalSampler(admin, name, self._write).run(), events.run()]
        others = Others()
        if self.context.substrate.name == LocalSubstrate.name:  # elsewhere it is not known what is our own
            beside.append(others.run())
        async with _background(*beside):
            prefix = f"{self.run_id}-{name}"
            load = asyncio.create_task(
                self.client.run(calls, name, start_at, prefix, self._called, self._surge, self.arm.clients)
            )
            try:
                await self._phases(start_at, strike)
                self._surge.close()
                await load
            finally:
                self._surge.close()
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
            said = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
            self.progress.say(f"arm {name}: calls ended: {said or 'none'}")
            share = others.share
            await self._account(accounts)
            await self._recover(strike, before, events)
        if share is not None:
            self._check(MACHINE_ALONE, Finding(True, {OTHERS_SHARE: round(share, 3)}))
        await self._copy_rest(events)
        self._held_awaiting(events, strike.struck)
        self._phase("end", time.time())

    async def _phases(self, start_at: float, strike: Strike) -> None:
        fault_at = start_at + self.plan.fault_offset_s
        hold_s = self.experiment.phases.hold_s
        self._phase("warm_up", start_at)
        await strike.announce(fault_at, self.plan.fault_offset_s, injected=self.arm.fault)
        await sleep_until(start_at + self.plan.steady_offset_s)
        self._phase("steady", time.time())
        if not self.arm.fault:
            await sleep_until(fault_at)
            self._phase("fault", fault_at)
            self._phase("hold", fault_at)
            await sleep_until(fault_at + hold_s)
        else:
            await sleep_until(max(time.time(), fault_at - RESOLVE_BEFORE_S))
            faults = await strike.resolve()
            self._phase("fault", fault_at)
            async with strike.in_force(faults, fault_at):
                held_from = max((s.injected_at for s in strike.struck), default=time.time())
                self._phase("hold", held_from)
                for struck in strike.struck:
                    waited_s = struck.injected_at - fault_at
                    self.progress.say(
                        f"arm {self.arm.name}: {struck.plan.kind} on {struck.fault.target}, "
                        f"{waited_s:.2f} s after its time"
                    )
                await strike.verify(max(hold_s, 1.0))
                await sleep_until(held_from + hold_s)
                self._phase("revert", time.time())
        self._phase("recovery", time.time())

    async def _account(self, accounts: Accounts) -> None:
        """Write down what really happened, once every job has come to its end."""
        bounds = self.bounds
        await accounts.jobs(self.calls, bounds.quiet_s, bounds.poll_s)
        for name, found in (
            (LEDGER_READ, await accounts.ledger(bounds.quiet_s, bounds.poll_s)),
            (AUDIT_COMPLETE, await accounts.audit(self.calls)),
        ):
            if found is not None:
                self._check(name, found)

    async def _recover(self, strike: Strike, before: set[str], events: EventCopier) -> None:
        admin, bounds = self.context.admin, self.bounds
        for struck in strike.struck:
            if struck.fault.loses_replica:
                await self._returned(struck, before, events)
        self._check(IN_FLIGHT_ZERO, await nothing_in_flight(admin, bounds.quiet_s, bounds.poll_s))
        self._check(NO_TOXICS, await no_toxic(self.context.endpoints.toxiproxy_url))
        self._check(NO_LEFTOVERS, await no_leftovers(self.context.substrate, bounds.quiet_s, bounds.poll_s))

    async def _returned(self, struck: Struck, before: set[str], events: EventCopier) -> None:
        """Wait until a successor of the lost replica takes load, and write down how long that took."""
        name, admin, bounds = self.arm.name, self.context.admin, self.bounds
        lost = struck.fault.target
        self.progress.say(f"arm {name}: waiting for the successor of {lost} to take load")
        found = await all_serving(admin, self.client, self.replicas, {lost}, bounds.return_s, bounds.poll_s)
        detail: dict[str, Any] = {"lost": lost, **found.detail}
        listed_at, seen_at = detail.pop("listed_at", None), detail.pop("serving_at", None)
        if found.ok:
            with contextlib.suppress(AdminError):
                await events.copy()
            successors = set(detail["links"]) - before
            token_at = first_token_at(events.records, successors) or seen_at
            detail["successors"] = sorted(successors)
            detail["listed_by_s"] = round(listed_at - struck.injected_at, 3)
            detail["serving_after_s"] = round(token_at - struck.injected_at, 3)
            self._write(FaultRecord(name, struck.plan.kind, lost, "recovered", token_at, detail))
            self.progress.say(
                f"arm {name}: the successor gave its first token {detail['serving_after_s']:.1f} s after the fault"
            )
        self._check(REPLICA_RETURNED, Finding(found.ok, detail))

    async def _copy_rest(self, events: EventCopier) -> None:
        try:
            await events.copy()
        except AdminError as error:
            self._check("gateway_events", Finding(None, {"error": str(error)}))
            return
        complete = events.dropped == 0
        detail = {"events": len(events.records), "dropped": events.dropped}
        if events.restarts:
            detail["restarts"] = events.restarts
        self._check("gateway_events", Finding(True if complete else None, detail))

    def _held_awaiting(self, events: EventCopier, struck: list[Struck]) -> None:
        """Whether the target really held calls without a first token: else the arm says nothing about such calls."""
        for one in struck:
            if not one.plan.when.get("awaiting"):
                continue
            ids = awaiting_at(events.records, one.fault.target, one.struck_at, one.injected_at)
            detail = {"count": len(ids), "request_ids": ids}
            self._check("calls_awaiting_at_fault", Finding(True if ids else None, detail))


@contextlib.asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` beside the block and end it with the block; what it raised is raised then."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
