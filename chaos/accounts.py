"""What is read when an arm has ended: the tool's ledger, every job that was accepted, and the audit.

What clients were told is in the call records. Here stands what really happened, from whoever knows it, so that the one
can be held against the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from chaos.experiment import Experiment
from chaos.faults import FaultContext
from chaos.history import CallRecord, EffectRecord, JobRecord, Record
from chaos.load.client import LoadClient
from chaos.load.jobs import OVER
from chaos.recovery import Finding
from chaos.substrate import SubstrateError
from chaos.tool import AnswerLost, Tool
from chaos.waiting import until
from cluster.public import ERROR_UNAVAILABLE

LEDGER_READ: Final = "ledger_read"
"""Check record: the tool's ledger was read before and after the arm."""
AUDIT_COMPLETE: Final = "audit_complete"
"""Check record: the audit is whole, and has every request that was answered."""
AUDIT_MODULE: Final = "audit_cli"
JOBS_AT_ONCE: Final = 8
UNRECORDED: Final = frozenset({ERROR_UNAVAILABLE})
"""Types of refusals that may be what kept the record from being written."""
MOST_REQUESTS: Final = 100_000
_CLOCKS_APART_S: Final = 5.0
_MOST_NAMED: Final = 20


def transfers(experiment: Experiment) -> bool:
    """Tell whether calls of the experiment have effects."""
    return any(one.transfer for one in experiment.load.classes)


@dataclass
class Accounts:
    """The accounts of one arm; ``sink`` gets what was found."""

    context: FaultContext
    client: LoadClient
    experiment: Experiment
    arm: str
    sink: Callable[[Record], None]
    _lines_before: int | None = None
    _began_at: float = field(default_factory=time.time)

    async def begin(self) -> None:
        """Remember where the ledger ends before the arm."""
        self._began_at = time.time()
        if transfers(self.experiment):
            async with await self._tool() as tool:
                self._lines_before = len(await tool.effects())

    async def ledger(self, bound_s: float, poll_s: float) -> Finding | None:
        """Write what the tool did during the arm; None where nothing was to have an effect."""
        if self._lines_before is None:
            return None
        problem: dict[str, Any] = {}

        async def lines() -> list[EffectRecord] | None:
            try:
                async with await self._tool() as tool:
                    found = await tool.effects(self._lines_before or 0)
            except (SubstrateError, AnswerLost) as error:
                problem["error"] = str(error)
                return None
            return [EffectRecord(self.arm, one.seq, one.key, one.sender, one.at) for one in found] or []

        found = await _first(lines, bound_s, poll_s)
        if found is None:
            return Finding(None, problem)
        for record in found:
            self.sink(record)
        return Finding(True, {"effects": len(found)})

    async def jobs(self, calls: Sequence[CallRecord], bound_s: float, poll_s: float) -> None:
        """Wait until every job that was accepted is over, within the bound, and write what became of each."""
        gate = asyncio.Semaphore(JOBS_AT_ONCE)
        ends_at = time.monotonic() + bound_s

        async def one(call: CallRecord) -> None:
            last = ("unknown", "", "")

            async def over() -> bool:
                nonlocal last
                async with gate:
                    last = await self.client.job(call)
                return last[0] in (*OVER, "missing")

            await until(over, max(0.1, ends_at - time.monotonic()), poll_s)
            state, reason, sha = last
            self.sink(JobRecord(self.arm, call.n, call.job, state, time.time(), reason, sha))

        await asyncio.gather(*(one(call) for call in calls if call.job))

    async def audit(self, calls: Sequence[CallRecord]) -> Finding | None:
        """Have the audit verified, and look for every request that got an answer; None where there is no store."""
        if await self.context.substrate.store() is None:
            return None
        ask = self.context.substrate.gateway_command
        since = datetime.fromtimestamp(self._began_at - _CLOCKS_APART_S, UTC).isoformat()
        try:
            verified = await ask(AUDIT_MODULE, "verify", "--json", "--since", since)
            listed = await ask(
                AUDIT_MODULE, "list", "--json", "--since", since, "--limit", str(MOST_REQUESTS)
            )
            report = json.loads(verified.output)
            known = {str(json.loads(line)["request_id"]) for line in listed.output.splitlines()}
        except (SubstrateError, ValueError, KeyError, TypeError) as error:
            return Finding(None, {"error": f"{type(error).__name__}: {error}"})
        problems = list(report.get("problems") or ())
        missing = sorted(recorded_requests(calls) - known)
        detail = {
            "requests": len(known),
            "unclosed": len(report.get("unclosed") or ()),
            "problems": problems[:_MOST_NAMED],
            "missing": missing[:_MOST_NAMED],
        }
        return Finding(verified.code == 0 and not problems and not missing, detail)

    async def _tool(self) -> Tool:
        return await Tool.of(self.context.admin, self.context.substrate)


def recorded_requests(calls: Collection[CallRecord]) -> set[str]:
    """Return the ids of the requests of which a record must stand: all that were answered by the gateway itself.

    A refusal because the record could not be written has none, of course; nor need one whose answer never came.
    """
    found: set[str] = set()
    for call in calls:
        tries = call.tries or [
            {"request_id": call.request_id, "status": call.status, "error_type": call.error_type}
        ]
        found |= {
            str(one["request_id"])
            for one in tries
            if one["status"] and not (one["status"] == 503 and one["error_type"] in UNRECORDED)
        }
    return found


async def _first(look: Callable[[], Any], bound_s: float, poll_s: float) -> Any:
    """Return the first answer that is not None, also an empty one; None when there was none within the bound."""

    async def boxed() -> list[Any] | None:
        found = await look()
        return None if found is None else [found]

    box = await until(boxed, bound_s, poll_s)
    return None if box is None else box[0]
