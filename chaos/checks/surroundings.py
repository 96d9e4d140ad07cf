"""What the runner looked at when an arm or the run ended: nothing in flight, nothing left, the replica back.

The runner writes what it saw as check records; here they become checks, and one that should be there and is not is
inconclusive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chaos.accounts import AUDIT_COMPLETE, LEDGER_READ
from chaos.checks.check import Check, Status
from chaos.faults import FAULTS
from chaos.history import CheckRecord
from chaos.machine import MACHINE_ALONE
from chaos.measures import Measures

REPLICA_RETURNED: Final = "replica_returned"
"""After a replica was lost: a new incarnation is in rotation and took load."""
IN_FLIGHT_ZERO: Final = "in_flight_zero"
"""At the end of an arm: the gateway has no call in flight, and no replica a running request."""
NO_TOXICS: Final = "no_toxics"
"""At the end of an arm: no toxic on any link."""
NO_LEFTOVERS: Final = "no_leftovers"
"""At the end of the run: no process or container that was not there before."""

LOSES_REPLICA: Final = frozenset(kind for kind, fault in FAULTS.items() if fault.loses_replica)
"""Kinds of fault after which a replica must return."""
_SAID: Final = {
    REPLICA_RETURNED: "the replica returned and took load",
    IN_FLIGHT_ZERO: "nothing was left in flight",
    NO_TOXICS: "no toxic was left on any link",
    NO_LEFTOVERS: "no process or container was left",
    MACHINE_ALONE: "the processors were looked at while the arm ran",
    "offered_load": "the load is a share of the measured capacity",
    "capacity_shared": "the capacity was measured by an earlier run on this very cluster",
    "gateway_events": "the gateway's events are complete",
    LEDGER_READ: "the tool's ledger was read",
    AUDIT_COMPLETE: "the audit is whole and has every request that was answered",
    "calls_awaiting_at_fault": "the target held calls that awaited their first token",
}
_NOT: Final = {
    REPLICA_RETURNED: "the replica did not return",
    IN_FLIGHT_ZERO: "work was left in flight",
    NO_TOXICS: "a toxic was left on a link",
    NO_LEFTOVERS: "something was left behind",
    AUDIT_COMPLETE: "the audit is not whole",
}


def _describe(record: CheckRecord) -> str:
    words: dict[str, str] = {True: _SAID, False: _NOT, None: {}}[record.ok]
    text = words.get(record.name, f"{record.name.replace('_', ' ')}: {_word(record.ok)}")
    # What is as it should be needs no lists; what is not needs everything that was seen.
    told = ", ".join(
        f"{key} {value}"
        for key, value in record.detail.items()
        if value not in ("", [], {}) and not (record.ok and isinstance(value, list | dict))
    )
    return f"{text} ({told})" if told else text


def _word(ok: bool | None) -> str:
    return {True: "yes", False: "no", None: "could not be found out"}[ok]


def _status(ok: bool | None) -> Status:
    return "inconclusive" if ok is None else "pass" if ok else "fail"


def _judge(records: Sequence[CheckRecord], required: Sequence[str], arm: str) -> Iterator[Check]:
    for record in records:
        yield Check(record.name, _status(record.ok), _describe(record), arm, dict(record.detail))
    for name in required:
        if name not in {record.name for record in records}:
            summary = f"not looked at: whether {_SAID[name]} is not in the history"
            yield Check(name, "inconclusive", summary, arm)


def found_by_the_runner(measures: Measures) -> Iterator[Check]:
    """Every check record becomes a check; those that an arm or a run needs must be there."""
    evidence = measures.evidence
    kinds = {fault.kind for fault in evidence.experiment.faults}
    somewhere = [record.name for arm in evidence.arms for record in arm.checks]
    for arm in evidence.arms:
        required = [IN_FLIGHT_ZERO, NO_TOXICS]
        if arm.step("injected") is not None and kinds & LOSES_REPLICA:
            required.append(REPLICA_RETURNED)
        # Looked at once for the whole run is enough where no arm has a record of its own.
        if NO_LEFTOVERS in somewhere:
            required.append(NO_LEFTOVERS)
        required = [
            name
            for name in required
            if name == REPLICA_RETURNED or name in somewhere or name not in {r.name for r in evidence.checks}
        ]
        yield from _judge(arm.checks, required, arm.name)
    yield from _judge(evidence.checks, [] if NO_LEFTOVERS in somewhere else [NO_LEFTOVERS], "")
