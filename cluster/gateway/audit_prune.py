"""Removes old records, whole closed beginnings of chains only, and leaves what the rest can be verified against.

In place of what is removed stands one head. It has the sequence number of the last record that is gone, names that
record's digest, which the next record names too, and says how much is gone, when and by whom it was removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select

from cluster.gateway.audit_chain import Place
from cluster.gateway.audit_reading import ends, records_of
from cluster.gateway.audit_record import CLOSE, HEAD, OPEN, Record, body_of, seal, time_of
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import AUDIT


class PruneConflict(Exception):
    """Somebody else has changed what was to be removed; nothing was removed."""


@dataclass(frozen=True, slots=True)
class Prunable:
    """The beginning of a chain that can be removed."""

    first: Record
    last: Record
    records: int
    unknown: int
    """Requests in it that were never closed."""


@dataclass(slots=True)
class _Scan:
    """Finds the longest beginning that is old, and in which all is closed that was opened."""

    before: float
    with_unknown: bool
    closed: set[int]
    open: set[int]
    best: Record | None = None
    count: int = 0
    best_count: int = 0
    unknown: int = 0
    best_unknown: int = 0

    def add(self, record: Record) -> bool:
        """Take the next record; return False when nothing that follows can be removed."""
        if time_of(record) >= self.before:
            return False
        self.count += 1
        if record.kind == OPEN:
            if record.seq in self.closed:
                self.open.add(record.seq)
            elif self.with_unknown:
                self.unknown += 1
            else:
                return False
        elif record.kind == CLOSE:
            self.open.discard(_opened(record))
        if not self.open:
            self.best, self.best_count, self.best_unknown = record, self.count, self.unknown
        return True


def _opened(record: Record) -> int:
    body = body_of(record)
    opened = body.get("opened")
    return opened if isinstance(opened, int) and "chain" not in body else -1


async def prunable(store: Store, end: Place, before: float, *, with_unknown: bool) -> Prunable | None:
    """Return what of a chain can be removed; None where that is nothing. The last record always stays.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    closed = {_opened(record) async for record in records_of(store, end) if record.kind == CLOSE}
    scan = _Scan(before, with_unknown, closed, set())
    first: Record | None = None
    async for record in records_of(store, end):
        first = first or record
        if record.seq >= end.seq or not scan.add(record):
            break
    if first is None or scan.best is None or scan.best.seq == first.seq:
        return None
    return Prunable(first, scan.best, scan.best_count, scan.best_unknown)


async def prune_chain(store: Store, found: Prunable, by: str) -> None:
    """Remove it, and leave the head, in one transaction.

    Raises:
        PruneConflict: the chain has changed since it was looked at.
        StoreUnavailable: it was not done, or nobody can tell. Doing it again does no harm.
    """
    await store.write(_replace(found, by, time.time()))


def _replace(found: Prunable, by: str, now: float) -> Callable[[Connection], None]:
    last, before = found.last, body_of(found.first).get("pruned", {})
    body: dict[str, Any] = {
        "at": round(now, 6),
        "pruned": {
            "seq": last.seq,
            "digest": last.digest,
            "records": found.records - bool(before) + int(before.get("records", 0)),
            "unknown": found.unknown + int(before.get("unknown", 0)),
            "last_at": time_of(last),
            "by": by,
        },
    }
    head = seal(last.chain, last.seq, found.first.digest, HEAD, "", body)

    def work(connection: Connection) -> None:
        gone = (AUDIT.c.chain == last.chain) & (AUDIT.c.seq <= last.seq)
        count = connection.execute(select(func.count()).select_from(AUDIT).where(gone)).scalar_one()
        if count != found.records:  # somebody else has pruned it meanwhile, or it was tampered with
            raise PruneConflict(f"chain {last.chain} has changed while it was looked at; try again")
        connection.execute(delete(AUDIT).where(gone))
        connection.execute(AUDIT.insert(), head.row())

    return work


async def all_prunable(store: Store, before: float, *, with_unknown: bool) -> list[Prunable]:
    """Return what of all chains can be removed.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    found = []
    for end in await store.read(ends):
        one = await prunable(store, end, before, with_unknown=with_unknown)
        if one is not None:
            found.append(one)
    return found
