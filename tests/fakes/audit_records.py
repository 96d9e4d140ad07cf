"""Whole chains of audit records, made without a store."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.gateway.audit_chain import Chain, Entry
from cluster.gateway.audit_record import CLOSE, OPEN, Closing, Opening, Record, closing_body, opening_body

BEGAN_AT = 1_700_000_000.0


def chain_of(
    requests: int, *, name: str = "chain-a", unclosed: tuple[int, ...] = (), at_once: int = 1000
) -> Iterator[Record]:
    """Give a chain's head and the pair of records of each request, a second apart.

    ``unclosed`` are the numbers of those that have no close record.
    """
    chain = Chain(about={"host": "here"}, id=name)
    entries: list[Entry] = []
    for number in range(requests):
        at, request_id = BEGAN_AT + number, f"r{number}"
        opening = Opening(request_id, "t", "p", "k", "POST", "/v1/chat/completions", "m", body_bytes=number)
        opened = Entry(OPEN, request_id, opening_body(opening, at))
        entries.append(opened)
        if number not in unclosed:
            closing = Closing("ok", 200, "full", 1, "replica-0.a", seconds=0.5)
            entries.append(Entry(CLOSE, request_id, closing_body(closing, at + 0.5), opened=opened))
        if len(entries) >= at_once or number == requests - 1:
            batch = chain.seal(entries, BEGAN_AT)
            yield from batch.records
            chain.end, entries = batch.end, []
