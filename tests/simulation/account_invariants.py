"""What the pipeline keeps account of, counted again from outside."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from policies.errors import NoReplica
from policies.events import (
    AttemptEnded,
    AttemptFirstToken,
    AttemptHeaders,
    AttemptStarted,
    Event,
    Hedged,
    Refused,
    RetryScheduled,
)
from policies.fleet import Replica
from policies.work import Outstanding
from tests.simulation.judging import Invariant


class LedgerMatches(Invariant):
    """The ledger is, replica by replica, the sum of what is in flight."""

    name: ClassVar[str] = "ledger matches what is in flight"

    def look(self) -> None:
        by_replica: dict[Replica, Outstanding] = {}
        ledger = self.world.around.ledger
        for one in self.world.bottom.in_flight:
            account = by_replica.setdefault(one.replica, Outstanding())
            account.attempts += 1
            account.sequences += one.call.work.sequences
            account.prompt_tokens += one.prompt_left
            account.output_tokens += one.output_left
        for replica in {**dict.fromkeys(self.world.fleet.replicas), **by_replica}:
            booked, found = ledger.at(replica), by_replica.get(replica, Outstanding())
            if booked != found:
                self.broken(f"{replica.name}: booked {booked}, in flight {found}")
        total = sum(one.tokens for one in by_replica.values())
        if ledger.total.tokens != total or ledger.total.attempts != len(self.world.bottom.in_flight):
            self.broken(f"in all: booked {ledger.total}, in flight {total} tokens")


class NothingIsLeft(Invariant):
    """When all calls are over, nobody holds anything: accounts, slots of replicas, tasks."""

    name: ClassVar[str] = "nothing is left over"

    def at_end(self) -> None:
        total, bottom = self.world.around.ledger.total, self.world.bottom
        if total != Outstanding():
            self.broken(f"the ledger still has {total}")
        if bottom.in_flight:
            self.broken(f"{len(bottom.in_flight)} attempts are still in flight")
        for model in bottom.replicas.values():
            if model.running or model.waiting:
                self.broken(f"{model.name} still holds {len(model.running)} + {len(model.waiting)} sequences")
        here = asyncio.current_task()
        tasks = sorted(task.get_name() for task in asyncio.all_tasks() if task is not here)
        if tasks:
            self.broken(f"tasks are left: {tasks}")


class EventsPair(Invariant):
    """Each attempt starts once and ends once, and nothing is told of it before or after."""

    name: ClassVar[str] = "events pair up"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._open: set[tuple[str, int]] = set()
        self._seen: set[tuple[str, int]] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            key = (event.request_id, event.attempt)
            if key in self._seen:
                self.broken(f"attempt {key} started twice")
            self._seen.add(key)
            self._open.add(key)
        elif isinstance(event, AttemptEnded | AttemptHeaders | AttemptFirstToken):
            key = (event.request_id, event.attempt)
            if key not in self._open:
                self.broken(f"{event.event} of attempt {key}, which is over")
            if isinstance(event, AttemptEnded):
                self._open.discard(key)

    def at_end(self) -> None:
        if self._open:
            self.broken(f"attempts {sorted(self._open)} never ended")


class BudgetKept(Invariant):
    """Repeats never exceed what first attempts and time have earned, sleeping retries included."""

    name: ClassVar[str] = "retry budget holds"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._firsts = 0
        self._nowhere: list[str] = []
        """Calls that have earned something before nobody was there to ask."""
        self._spent: set[tuple[str, int]] = set()
        self._asleep: set[tuple[str, int]] = set()
        self._on = self.active("retry", "retry_budget")

    def heard(self, at_s: float, event: Event) -> None:
        if not self._on:
            return
        if isinstance(event, Refused) and event.reason == NoReplica.reason:
            self._firsts += 1
            self._nowhere.append(event.request_id)
        elif isinstance(event, AttemptStarted) and event.attempt == 1:
            self._firsts += 1
        elif isinstance(event, AttemptStarted):
            self._asleep.discard((event.request_id, event.attempt))
            self._spent.add((event.request_id, event.attempt))
            self._check(at_s)
        elif isinstance(event, RetryScheduled | Hedged):
            self._asleep.add((event.request_id, event.attempt))
            self._check(at_s)

    def _check(self, at_s: float) -> None:
        clients, knobs = self.world.clients, self.world.plan.knobs.budget
        self._asleep = {key for key in self._asleep if not clients[key[0]].endings}
        held = len(self._spent) + len(self._asleep)
        earned = knobs.burst / 2 + knobs.ratio * self._firsts + knobs.reserve_per_s * at_s
        if held > earned + 1e-6:
            self.broken(f"{held} repeats were made or are waited for, {earned:.2f} are earned")

    def look(self) -> None:
        if not self._on:
            return
        knobs, now = self.world.plan.knobs.budget, asyncio.get_running_loop().time()
        prefill = knobs.burst_tokens / 2 + knobs.reserve_tokens_per_s * now
        decode = knobs.burst_output_tokens / 2 + knobs.reserve_output_tokens_per_s * now
        for made in self.world.bottom.made:
            work, ask = made.call.work, made.call.payload
            if made.attempt.number == 1:
                prefill += knobs.ratio * work.prompt_tokens
                decode += knobs.ratio * work.output_tokens
            else:
                prefill -= work.prompt_tokens
                decode -= 0 if ask.start else work.output_tokens  # what a continuation decodes is new
        for name in self._nowhere:
            call = self.world.clients[name].call
            assert call is not None
            prefill += knobs.ratio * call.work.prompt_tokens
            decode += knobs.ratio * call.work.output_tokens
        if min(prefill, decode) < -1e-6:
            self.broken(
                f"repeats have overdrawn the tokens: {prefill:.1f} of prefill, {decode:.1f} of decode left"
            )
