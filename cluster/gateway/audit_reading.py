"""Reads the audit in pages, so that a long one is never in memory as a whole, while gateways go on writing it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, func, select

from cluster.gateway.audit_chain import Place
from cluster.gateway.audit_record import COLUMNS, Record, time_of
from cluster.gateway.audit_verify import MISSING, ChainCheck, Problem, Unclosed
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import AUDIT

PAGE: Final = 2000
"""Records that are read at once."""
_COLUMNS: Final = [AUDIT.c[name] for name in COLUMNS]


def ends(connection: Connection) -> list[Place]:
    """Return where each chain ends, in the order in which the chains began."""
    last = select(AUDIT.c.chain, func.max(AUDIT.c.seq).label("seq")).group_by(AUDIT.c.chain).subquery()
    statement = (
        select(AUDIT.c.chain, AUDIT.c.seq, AUDIT.c.digest)
        .join(last, (AUDIT.c.chain == last.c.chain) & (AUDIT.c.seq == last.c.seq))
        .order_by(AUDIT.c.chain)
    )
    return [Place(str(row.chain), int(row.seq), str(row.digest)) for row in connection.execute(statement)]


def page(chain: str, after: int, through: int, limit: int = PAGE) -> Callable[[Connection], list[Record]]:
    """Return the work that reads the records of a chain after one and up to another, at most ``limit``."""
    statement = (
        select(*_COLUMNS)
        .where(AUDIT.c.chain == chain, AUDIT.c.seq > after, AUDIT.c.seq <= through)
        .order_by(AUDIT.c.seq)
        .limit(limit)
    )

    def work(connection: Connection) -> list[Record]:
        return [Record(*row) for row in connection.execute(statement)]

    return work


def of_request(request_id: str) -> Callable[[Connection], list[Record]]:
    """Return the work that reads all records of one request id, in their order."""
    statement = select(*_COLUMNS).where(AUDIT.c.request_id == request_id)
    statement = statement.order_by(AUDIT.c.chain, AUDIT.c.seq)

    def work(connection: Connection) -> list[Record]:
        return [Record(*row) for row in connection.execute(statement)]

    return work


async def records_of(store: Store, end: Place) -> AsyncIterator[Record]:
    """Give the records of a chain up to its end as it is known.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    after = -1 << 62
    while True:
        found = await store.read(page(end.chain, after, end.seq))
        for record in found:
            yield record
        if len(found) < PAGE:
            return
        after = found[-1].seq


@dataclass(slots=True)
class Found:
    """What a verification has found."""

    chains: int = 0
    records: int = 0
    skipped: int = 0
    """Chains that ended before the time from which was asked."""
    problems: list[Problem] = field(default_factory=list)
    unclosed: list[Unclosed] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    """What could not be compared with the heads that were given, and why."""
    seconds: float = 0.0


async def verify(
    store: Store,
    *,
    heads: Mapping[str, Place] | None = None,
    since: float | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Found:
    """Check every chain.

    Args:
        heads: where chains ended when somebody last wrote that down elsewhere.
        since: leave out chains whose last record is older (seconds since the epoch).
        progress: is told the records that are done, and about how many there are.

    Raises:
        StoreUnavailable: the store did not answer.
    """
    began = time.monotonic()
    heads = heads or {}
    found = Found()
    places = await store.read(ends)
    total = sum(place.seq + 1 for place in places)
    elsewhere: set[tuple[str, int]] = set()
    for place in places:
        if since is not None and await _ended_before(store, place, since):
            found.skipped += 1
            continue
        check = await _verify_chain(store, place, heads, lambda done: progress(found.records + done, total))
        known = heads.get(place.chain)
        if known is not None and known.seq < check.pruned_through:
            found.untold.append(
                f"chain {place.chain} has been pruned through record {check.pruned_through}, "
                f"past the head that was written down ({known.seq})"
            )
        found.chains += 1
        found.records += check.records
        found.problems += check.problems
        found.unclosed += check.unclosed.values()
        elsewhere.update(check.closed_elsewhere)
    here = {place.chain for place in places}
    for chain, known in heads.items():
        if chain not in here:
            found.problems.append(Problem(MISSING, chain, known.seq, "", "the whole chain is gone"))
    found.unclosed = [one for one in found.unclosed if (one.chain, one.seq) not in elsewhere]
    found.seconds = time.monotonic() - began
    return found


async def _verify_chain(
    store: Store, place: Place, heads: Mapping[str, Place], progress: Callable[[int], None]
) -> ChainCheck:
    """Check one chain; anew if it was pruned meanwhile, which takes away what was being read."""
    while True:
        check = ChainCheck(place.chain, heads.get(place.chain))
        first = await store.read(page(place.chain, -1 << 62, place.seq, 1))
        async for record in records_of(store, place):
            check.add(record)
            if check.records % PAGE == 0:
                progress(check.records)
        check.end()
        if await store.read(page(place.chain, -1 << 62, place.seq, 1)) == first:
            return check


async def _ended_before(store: Store, place: Place, since: float) -> bool:
    last = await store.read(page(place.chain, place.seq - 1, place.seq, 1))
    return bool(last) and time_of(last[0]) < since
