"""One gateway process's chain of records: what the next ones are, and what of it the store has."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from cluster.gateway.audit_record import CLOSE, FORMAT, HEAD, NOTHING_BEFORE, Closing, Record, seal
from cluster.gateway.store.tables import AUDIT


@dataclass(slots=True, eq=False)
class Entry:
    """Something that is to be recorded. Its place in a chain is known once it is sealed, and may change until then."""

    kind: str
    request_id: str
    body: dict[str, Any]
    opened: Entry | None = None
    """What a closing closes."""
    waiter: asyncio.Future[None] | None = None
    kept: bool = True
    """It is tried again until it is written. If not, somebody waits for it, and must not wait for long."""
    chain: str = ""
    seq: int = -1
    written: bool = False
    closing: Closing | None = None
    """How to close it once it is written, because its waiter is gone or has been told that there is no record."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chain ends."""

    chain: str
    seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are written together, or not at all."""

    records: Sequence[Record]
    entries: Sequence[Entry]
    places: Sequence[int]
    """Sequence numbers of the entries."""

    @property
    def end(self) -> Place:
        last = self.records[-1]
        return Place(last.chain, last.seq, last.digest)

    def insert(self, connection: Connection) -> None:
        """Write the records."""
        connection.execute(AUDIT.insert(), [record.row() for record in self.records])


def new_chain_id() -> str:
    """Return a name that no other chain has; names sort by the time at which chains began."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:16]}"


@dataclass(slots=True)
class Chain:
    """The end of a chain as it stands in the store."""

    about: dict[str, Any]
    """What the first record says of the process."""
    id: str = field(default_factory=new_chain_id)
    end: Place | None = None
    after: Place | None = None
    """The end of the chain that this one stands in for, because the store does not have that end any more."""

    def seal(self, entries: Sequence[Entry], at: float) -> Batch:
        """Return the records of the entries, which follow what is in the store."""
        seq, previous = (-1, NOTHING_BEFORE) if self.end is None else (self.end.seq, self.end.digest)
        records: list[Record] = []
        places: list[int] = []
        if self.end is None:
            records.append(seal(self.id, 0, previous, HEAD, "", self._head(at)))
            seq, previous = 0, records[0].digest
        for entry in entries:
            seq += 1
            entry.chain, entry.seq = self.id, seq
            record = seal(self.id, seq, previous, entry.kind, entry.request_id, _body(entry))
            previous = record.digest
            records.append(record)
            places.append(seq)
        return Batch(records, entries, places)

    def _head(self, at: float) -> dict[str, Any]:
        head = {"at": round(at, 6), "format": FORMAT, **self.about}
        if self.after is not None:
            head["after"] = {"chain": self.after.chain, "seq": self.after.seq, "digest": self.after.digest}
        return head

    def last(self, connection: Connection) -> Place | None:
        """Return the end of the chain as the store has it; None where it has nothing of it."""
        statement = select(AUDIT.c.seq, AUDIT.c.digest).where(AUDIT.c.chain == self.id)
        row = connection.execute(statement.order_by(AUDIT.c.seq.desc()).limit(1)).first()
        return None if row is None else Place(self.id, int(row.seq), str(row.digest))


def _body(entry: Entry) -> dict[str, Any]:
    if entry.kind != CLOSE or entry.opened is None:
        return entry.body
    body = {**entry.body, "opened": entry.opened.seq}
    if entry.opened.chain != entry.chain:
        body["chain"] = entry.opened.chain
    return body
