"""Holds what retrying clients were told against the tool's ledger, the store and the audit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from sqlalchemy import Connection, Table, func, select

from cluster.gateway.audit_reading import verify
from cluster.gateway.store.opening import open_store
from cluster.gateway.store.tables import CLAIMS, TOOL_STEPS
from tests.fakes.crash_stand import CrashStand
from tests.fakes.retrying import Final, Payment


def session() -> aiohttp.ClientSession:
    """Return a client without limits that opens a connection for each request."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60))


async def check(stand: CrashStand, answers: Sequence[tuple[Payment, Final]], folder: Path) -> int:
    """Hold what clients were told against ledger, store and audit; return the requests of unknown outcome."""
    effects = await stand.effects()
    receivers = [effect["receiver"] for effect in effects]
    assert len(receivers) == len(set(receivers)), "an effect happened twice"
    assert sorted(receivers) == sorted(payment.key for payment, _ in answers), "one effect for each answer"
    seq_of = {effect["receiver"]: effect["seq"] for effect in effects}
    for payment, final in answers:
        assert final.tool == ("" if payment.stream and payment.after else "ok")
        assert seq_told(stand, payment, final) == {seq_of[payment.key]}, "it tells what did not happen"
    store = await open_store(stand.store, folder)
    assert store is not None
    try:
        assert await store.read(counted(CLAIMS)) == {"done": len(answers)}
        assert await store.read(counted(TOOL_STEPS)) == {"done": len(answers)}
        found = await verify(store)
    finally:
        await store.close()
    assert found.problems == []
    assert found.records >= 2 * len(answers)
    return len(found.unclosed)


def seq_told(stand: CrashStand, payment: Payment, final: Final) -> set[int]:
    """Return the numbers of the transfer that an answer, or the prompts behind it, tell of."""
    if payment.after:
        events = final.body.split(b"\n\n")
        body = json.loads(events[-3].removeprefix(b"data: ") if payment.stream else final.body)
        return {tool["result"]["seq"] for tool in body["brownout"]["tools"]}
    start = f"pay {payment.key}\n"
    prompts = [seen.body["prompt"] for replica in stand.replicas for seen in replica.seen]
    return {int(seq) for one in prompts if one.startswith(start) for seq in re.findall(r'"seq": (\d+)', one)}


def counted(table: Table) -> Callable[[Connection], dict[str, int]]:
    """Return work that counts a table's rows by their state."""

    def work(connection: Connection) -> dict[str, int]:
        rows = connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
        return {state: count for state, count in rows}  # noqa: C416 - rows are no pairs

    return work


async def replayed_alike(
    http: aiohttp.ClientSession, answers: Sequence[tuple[Payment, Final]], *urls: str
) -> None:
    """Every key gets the same bytes again, from every gateway."""
    for payment, final in answers:
        for url in urls:
            again = await payment.once(http, url)
            assert again is not None, payment.refused
            assert again.replayed
            assert again.body == final.body
