"""The audit on every store: what is appended verifies, whatever becomes of the store while it is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, delete, select, update

from cluster.gateway.audit import Audit, Closing, Opening
from cluster.gateway.audit_prune import PruneConflict, all_prunable, prune_chain
from cluster.gateway.audit_reading import ends, of_request, verify
from cluster.gateway.audit_record import COLUMNS, Record, body_of
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import AUDIT

T = TypeVar("T")


class Shaky:
    """A store between the audit and the real one, which can be away, slow, or silent about what it did."""

    def __init__(self, store: Store) -> None:
        self.kind = store.kind
        self._store = store
        self.away = False
        self.silent_writes = 0
        self.lost_writes = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.writes = 0
        self.reads = 0

    async def write(self, work: Callable[[Connection], T]) -> T:
        self.writes += 1
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable("away")
        if self.lost_writes:
            self.lost_writes -= 1
            raise StoreUnavailable("silent", maybe_done=True)
        done = await self._store.write(work)
        if self.silent_writes:
            self.silent_writes -= 1
            raise StoreUnavailable("silent", maybe_done=True)
        return done

    async def read(self, work: Callable[[Connection], T]) -> T:
        self.reads += 1
        if self.away:
            raise StoreUnavailable("away")
        return await self._store.read(work)

    async def close(self) -> None:
        await self._store.close()


def asked(request_id: str, **fields: Any) -> Opening:
    return Opening(request_id, tenant="t", principal="p", key_id="k", method="POST", path="/v1/x", **fields)


def everything(connection: Connection) -> list[Record]:
    columns = [AUDIT.c[name] for name in COLUMNS]
    statement = select(*columns).order_by(AUDIT.c.chain, AUDIT.c.seq)
    return [Record(*row) for row in connection.execute(statement)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.005)


async def test_a_request_is_one_pair_of_records_that_say_what_happened(store: Store):
    audit = Audit(store)
    opened = await audit.open(asked("r1", model="m", body_digest="d" * 64, body_bytes=7, tool="charge"))
    assert [record.kind for record in await store.read(everything)] == ["head", "open"]
    tool = {"step": "before", "method": "charge", "state": "done", "effect": "done"}
    audit.close(opened, Closing("ok", 200, "full", 2, "replica-1.a", (tool,), "", 5, 6, 0.25))
    await audit.aclose()
    _, first, last = await store.read(everything)
    assert body_of(first).items() >= {"tenant": "t", "body_bytes": 7, "decision": "allowed"}.items()
    said = body_of(last)
    assert said["opened"] == first.seq
    assert said["tools"] == [tool]
    assert (said["attempts"], said["replica"], said["seconds"]) == (2, "replica-1.a", 0.25)
    assert [record.seq for record in await store.read(of_request("r1"))] == [1, 2]
    found = await verify(store)
    assert (found.records, found.problems, found.unclosed) == (3, [], [])


async def test_what_arrives_while_it_writes_goes_out_together(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    shaky.gate.clear()
    opening = [asyncio.create_task(audit.open(asked(f"r{n}"))) for n in range(100)]
    await until(lambda: shaky.writes == 1 and audit.waiting == 100)
    shaky.gate.set()
    for opened in await asyncio.gather(*opening):
        audit.close(opened, Closing("ok", 200))
    await audit.aclose()
    assert shaky.writes <= 4
    found = await verify(store)
    assert (found.records, found.problems, found.unclosed) == (201, [], [])


async def test_without_a_store_nothing_is_opened_and_closings_are_kept(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    opened = await audit.open(asked("r1"))
    shaky.away = True
    audit.close(opened, Closing("ok", 200))
    with pytest.raises(StoreUnavailable):
        await audit.open(asked("r2"))
    shaky.away = False
    await audit.open(asked("r3"))
    await audit.aclose()
    found = await verify(store)
    assert [one.request_id for one in found.unclosed] == ["r3"]
    assert found.problems == []
    refused = await store.read(of_request("r2"))
    assert body_of(refused[-1])["reason"] == "audit_unavailable", "that it was refused is known later"
    assert len(refused) == 2


async def test_a_closing_is_written_when_the_store_is_back_though_nobody_asks(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    opened = await audit.open(asked("r1"))
    shaky.away = True
    audit.close(opened, Closing("ok", 200))
    await until(lambda: shaky.writes == 2)
    shaky.away = False
    await until(lambda: audit.waiting == 0)
    await audit.aclose()
    assert (await verify(store)).unclosed == []


async def test_a_closing_that_comes_while_the_store_is_away_and_all_is_quiet_is_written_too(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky, most_waiting=0)
    opened = await audit.open(asked("r1"))
    shaky.away = True
    with pytest.raises(StoreUnavailable):
        await audit.open(Opening("nobody"))
    assert audit.waiting == 0, "it is summed up"
    shaky.away = False
    audit.close(opened, Closing("ok", 200))
    await until(lambda: audit.waiting == 0)
    await audit.aclose()
    assert [record.kind for record in await store.read(of_request("r1"))] == ["open", "close"]


async def test_a_closing_goes_out_with_the_next_opening(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    for number in range(5):
        audit.close(await audit.open(asked(f"r{number}")), Closing("ok", 200))
    await audit.aclose()
    assert shaky.writes == 6
    assert (await verify(store)).unclosed == []


async def test_a_write_that_was_done_in_silence_is_not_done_again(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    shaky.silent_writes = 1
    with pytest.raises(StoreUnavailable) as caught:
        await audit.open(asked("r1"))
    assert caught.value.maybe_done
    opened = await audit.open(asked("r2"))
    shaky.silent_writes = 1
    audit.close(opened, Closing("ok", 200))
    await until(lambda: audit.waiting == 0)
    await audit.open(asked("r3"))
    await audit.aclose()
    found = await verify(store)
    assert found.problems == []
    assert [one.request_id for one in found.unclosed] == ["r3"]
    refused = (await store.read(of_request("r1")))[-1]
    assert body_of(refused)["reason"] == "audit_unavailable", "it was told 503, so its record says so"
    assert [record.kind for record in await store.read(of_request("r2"))] == ["open", "close"]


async def test_a_write_that_was_lost_in_silence_is_done_again(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    opened = await audit.open(asked("r1"))
    shaky.lost_writes = 1
    audit.close(opened, Closing("ok", 200))
    await until(lambda: audit.waiting == 0)
    await audit.aclose()
    found = await verify(store)
    assert (found.records, found.problems, found.unclosed) == (3, [], [])


async def test_a_write_that_is_done_late_takes_its_place_and_what_followed_moves_behind_it(store: Store):
    """As after a time-out: the store says nothing, has nothing when it is asked, and does it only then."""
    shaky = Shaky(store)
    audit = Audit(shaky)
    opened = await audit.open(asked("r1"))
    late: list[Callable[[Connection], Any]] = []
    real = shaky.write

    async def silent(work: Callable[[Connection], Any]) -> Any:
        late.append(work)
        shaky.write = after
        raise StoreUnavailable("silent", maybe_done=True)

    async def after(work: Callable[[Connection], Any]) -> Any:
        shaky.write = real
        await store.write(late[0])
        return await real(work)

    shaky.write = silent
    with pytest.raises(StoreUnavailable):
        await audit.open(asked("r2"))
    audit.close(opened, Closing("ok", 200))
    await audit.open(asked("r3"))
    await audit.aclose()
    found = await verify(store)
    assert found.problems == []
    assert [one.request_id for one in found.unclosed] == ["r3"]
    assert len(await store.read(everything)) == 6


async def test_a_caller_who_leaves_while_the_record_is_written_is_recorded_as_gone(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    shaky.gate.clear()
    in_flight = asyncio.create_task(audit.open(asked("r1")))
    await until(lambda: shaky.writes == 1)
    behind = asyncio.create_task(audit.open(asked("r2")))
    await until(lambda: audit.waiting == 2)
    for task in (in_flight, behind):
        task.cancel()
    await asyncio.gather(in_flight, behind, return_exceptions=True)
    shaky.gate.set()
    await audit.aclose()
    found = await verify(store)
    assert (found.problems, found.unclosed) == ([], [])
    assert [body_of(one).get("outcome") for one in await store.read(of_request("r1"))] == [None, "cancelled"]
    assert await store.read(of_request("r2")) == []


async def test_a_store_that_has_lost_the_end_of_the_chain_gets_a_new_one_that_says_so(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    await audit.open(asked("r0"))
    opened = await audit.open(asked("r1"))
    first = audit.chain
    await store.write(lambda connection: connection.execute(delete(AUDIT).where(AUDIT.c.seq >= 2)).rowcount)
    shaky.away = True
    with pytest.raises(StoreUnavailable):
        await audit.open(asked("r2"))
    shaky.away = False
    audit.close(opened, Closing("ok", 200))
    await audit.open(asked("r3"))
    await audit.aclose()
    assert audit.chain != first
    heads = [record for record in await store.read(everything) if record.kind == "head"]
    assert [
        body_of(head).get("after", {}).get("seq")
        for head in sorted(heads, key=lambda h: h.chain == audit.chain)
    ] == [None, 2]
    closed = (await store.read(of_request("r1")))[-1]
    assert body_of(closed)["chain"] == first


async def test_refusals_without_a_key_are_summed_up_beyond_a_bound(store: Store):
    audit = Audit(store, refusals_a_minute=3, now=lambda: 1000.0)
    told = Closing("refused", 401, reason="invalid_api_key")
    for number in range(50):
        await audit.refused(Opening(f"x{number}", path="/v1/models", decision="unauthenticated"), told)
    await audit.refused(asked("mine", decision="forbidden"), Closing("refused", 403, reason="model"))
    await audit.aclose()
    records = await store.read(everything)
    assert [record.kind for record in records] == ["head", *["open", "close"] * 4, "refusals"]
    assert body_of(records[-1])["counts"] == {"401 invalid_api_key": 47}
    assert (await verify(store)).problems == []


async def test_a_refusal_is_told_though_the_store_is_away_and_recorded_when_it_is_back(store: Store):
    shaky = Shaky(store)
    audit = Audit(shaky)
    shaky.away = True
    await audit.refused(asked("r1", decision="forbidden"), Closing("refused", 403))
    shaky.away = False
    await audit.aclose()
    assert [record.kind for record in await store.read(of_request("r1"))] == ["open", "close"]


async def test_two_gateways_have_chains_of_their_own(store: Store):
    one, other = Audit(store), Audit(store)
    for number in range(10):
        await asyncio.gather(one.open(asked(f"a{number}")), other.open(asked(f"b{number}")))
    await asyncio.gather(one.aclose(), other.aclose())
    found = await verify(store)
    assert (found.chains, found.records, found.problems, len(found.unclosed)) == (2, 22, [], 20)


async def test_an_end_that_was_cut_off_shows_against_heads_that_were_kept_elsewhere(store: Store):
    audit = Audit(store)
    for number in range(5):
        await audit.open(asked(f"r{number}"))
    await audit.aclose()
    heads = {place.chain: place for place in await store.read(ends)}
    await store.write(lambda connection: connection.execute(delete(AUDIT).where(AUDIT.c.seq == 5)).rowcount)
    assert (await verify(store)).problems == [], "nothing in the store tells"
    found = await verify(store, heads=heads)
    assert [problem.kind for problem in found.problems] == ["missing"]
    await store.write(lambda connection: connection.execute(delete(AUDIT)).rowcount)
    found = await verify(store, heads=heads)
    assert [problem.text for problem in found.problems] == ["the whole chain is gone"]


async def test_an_altered_body_is_found(store: Store):
    audit = Audit(store)
    for number in range(5):
        await audit.open(asked(f"r{number}"))
    await audit.aclose()
    change = update(AUDIT).where(AUDIT.c.seq == 3).values(body='{"at":1.0,"tenant":"other"}')
    await store.write(lambda connection: connection.execute(change).rowcount)
    found = await verify(store)
    assert [(problem.kind, problem.seq, problem.request_id) for problem in found.problems] == [
        ("altered", 3, "r2")
    ]


async def test_what_is_old_and_closed_is_pruned_and_the_rest_verifies(store: Store):
    now = 1000.0
    audit = Audit(store, now=lambda: now)
    for number in range(4):
        audit.close(await audit.open(asked(f"old{number}")), Closing("ok", 200))
    unknown = await audit.open(asked("unknown"))
    now = 2000.0
    audit.close(await audit.open(asked("new")), Closing("ok", 200))
    await until(lambda: audit.waiting == 0)
    found = await all_prunable(store, 1500.0, with_unknown=False)
    assert [(one.last.seq, one.records, one.unknown) for one in found] == [(8, 9, 0)]
    await prune_chain(store, found[0], "somebody")
    with pytest.raises(PruneConflict):
        await prune_chain(store, found[0], "somebody else at the same time")
    audit.close(unknown, Closing("ok", 200))
    await audit.aclose()
    left = await verify(store)
    assert (left.records, left.problems, left.unclosed) == (5, [], [])
