"""Whether a chain of records is whole: pure, one record at a time, in the order of the sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from cluster.gateway.audit_chain import Place
from cluster.gateway.audit_record import (
    CLOSE,
    HEAD,
    NOTHING_BEFORE,
    OPEN,
    REFUSALS,
    Record,
    body_of,
    digest_of,
)

ALTERED: Final = "altered"
MISSING: Final = "missing"
REORDERED: Final = "reordered"
_KEPT: Final = 100
"""Records that do not agree with their digests and are looked at again, for whether they only change places."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    kind: str
    chain: str
    seq: int
    request_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Unclosed:
    """A request that was opened and never closed: nobody can tell how it ended."""

    chain: str
    seq: int
    request_id: str
    at: float


@dataclass(slots=True)
class ChainCheck:
    """Looks at the records of one chain. Feed it each, then call :meth:`end`.

    Args:
        head: where the chain ended when somebody last wrote that down elsewhere.
    """

    chain: str
    head: Place | None = None
    problems: list[Problem] = field(default_factory=list)
    unclosed: dict[int, Unclosed] = field(default_factory=dict)
    closed_elsewhere: list[tuple[str, int]] = field(default_factory=list)
    """Places of other chains whose records are closed in this one."""
    records: int = 0
    pruned_through: int = -1
    """The last record that pruning has removed; -1 where it has removed none."""
    _next_seq: int = 0
    _next_previous: str = NOTHING_BEFORE
    """Digest that the next record must name; empty: any, because of what has been told of the one before it."""
    _astray: list[Record] = field(default_factory=list)
    _gaps: list[int] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Look at the next record."""
        body = body_of(record)
        if not self.records:
            self._begin(record, body)
        elif record.seq != self._next_seq:
            self._missing(record)
        elif record.kind == HEAD:
            self._tell(REORDERED, record, "a head stands inside the chain")
        self.records += 1
        computed = digest_of(
            record.chain, record.seq, record.previous, record.kind, record.request_id, record.body
        )
        if computed != record.digest:
            self._set_aside(record)
        elif self._next_previous not in ("", record.previous):
            self._tell(REORDERED, record, "does not follow the record before it")
        stands_for = record.digest
        if record.seq == self.pruned_through:
            stands_for = str(body["pruned"].get("digest"))
        if self.head is not None and self.head.seq == record.seq and self.head.digest != stands_for:
            self._tell(
                ALTERED, record, "is not the record that was the last when the heads were written down"
            )
        self._next_seq, self._next_previous = record.seq + 1, stands_for if computed == record.digest else ""
        self._account(record, body)

    def end(self) -> None:
        """The chain has no more records."""
        for record in self._astray:
            was = self._written_as(record)
            text = "does not agree with its digest" if was is None else f"was written as record {was}"
            self._tell(ALTERED if was is None else REORDERED, record, text)
        if self.head is not None and self.head.seq >= self._next_seq:
            text = f"the end is cut off: record {self.head.seq} was the last when the heads were written down"
            self.problems.append(Problem(MISSING, self.chain, self._next_seq, "", text))

    def _begin(self, record: Record, body: dict[str, Any]) -> None:
        """The first record is the chain's first, or the head that pruning has left in place of its last one."""
        pruned = body.get("pruned")
        if record.kind == HEAD and isinstance(pruned, dict) and pruned.get("seq") == record.seq:
            self.pruned_through = record.seq
            self._next_previous = record.previous  # names an earlier head, which is gone
        elif record.kind != HEAD or record.seq != 0:
            self._missing(record)

    def _missing(self, record: Record) -> None:
        """Records are gone before this one."""
        gone = record.seq - self._next_seq
        text = f"{gone} record{'s' * (gone != 1)} before record {record.seq}" if gone else "the head is gone"
        self.problems.append(Problem(MISSING, self.chain, self._next_seq, "", text))
        self._gaps.extend(range(self._next_seq, min(record.seq, self._next_seq + _KEPT)))
        self._next_previous = record.previous

    def _set_aside(self, record: Record) -> None:
        if len(self._astray) < _KEPT:
            self._astray.append(record)
        else:
            self._tell(ALTERED, record, "does not agree with its digest")

    def _account(self, record: Record, body: dict[str, Any]) -> None:
        """Keep account of what is open."""
        if record.kind == OPEN:
            at = body.get("at")
            since = float(at) if isinstance(at, int | float) else 0.0
            self.unclosed[record.seq] = Unclosed(self.chain, record.seq, record.request_id, since)
        elif record.kind == CLOSE:
            opened, chain = body.get("opened"), body.get("chain")
            if isinstance(chain, str) and isinstance(opened, int):
                self.closed_elsewhere.append((chain, opened))
            elif not isinstance(opened, int) or self.unclosed.pop(opened, None) is None:
                self._closes_nothing(record, opened)
        elif record.kind not in (HEAD, REFUSALS):
            self._tell(ALTERED, record, f"has the kind {record.kind[:16]!r}, which does not exist")

    def _closes_nothing(self, record: Record, opened: Any) -> None:
        if isinstance(opened, int) and (opened <= self.pruned_through or self.problems or self._astray):
            return  # what it closes has been pruned, or is among what has been told already
        self._tell(ALTERED, record, f"closes record {str(opened)[:20]}, which is not open")

    def _written_as(self, record: Record) -> int | None:
        """Return where a record belongs that stands in another's place; None if it does not belong anywhere."""
        for seq in (*self._gaps[:_KEPT], *(other.seq for other in self._astray)):
            if record.digest == digest_of(
                record.chain, seq, record.previous, record.kind, record.request_id, record.body
            ):
                return seq
        return None

    def _tell(self, kind: str, record: Record, text: str) -> None:
        self.problems.append(Problem(kind, self.chain, record.seq, record.request_id, text))
