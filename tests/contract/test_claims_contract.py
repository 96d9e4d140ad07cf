"""Claims on both stores, also when several processes want the same key at once."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway import claims as module
from cluster.gateway.claims import Claims
from cluster.gateway.store.opening import open_store
from cluster.gateway.store.store import Store, StoreUnavailable
from policies.idempotency import (
    Claimed,
    ClaimLost,
    InFlight,
    Keyed,
    KeyReused,
    Recorded,
    Replay,
    body_digest,
    scope_of,
)

ANSWER = Recorded(
    200, {"content-type": "text/event-stream", "x-brownout-rung": "full"}, b"data: \xff\x00\n\n"
)
PROCESSES, KEYS = 3, 40


def keyed(key: str = "k", body: bytes = b"{}", tenant: str = "t") -> Keyed:
    scope = scope_of(tenant, "p", "POST", "/v1/completions", key)
    return Keyed(scope, body_digest(body), tenant, "p", f"req-{key}")


class Away:
    """A store that cannot be reached."""

    kind = "away"

    async def write(self, work: object) -> Any:
        raise StoreUnavailable("the store is down")

    read = write

    async def close(self) -> None: ...


async def take(claims: Claims, wanted: Keyed | None = None) -> Claimed:
    outcome = await claims.claim(wanted or keyed())
    assert isinstance(outcome, Claimed), outcome
    return outcome


async def take_over(claims: Claims) -> Claimed:
    """Wait until the lease of whoever has the key is over, and take it."""
    async with asyncio.timeout(10):
        while not isinstance(outcome := await claims.claim(keyed()), Claimed):
            assert isinstance(outcome, InFlight)
            await asyncio.sleep(0.02)
    return outcome


async def test_the_rules_hold_in_the_store(store: Store) -> None:
    claims = Claims(store, "a")
    held = await take(claims)
    assert isinstance(await claims.claim(keyed()), InFlight)
    assert isinstance(await claims.claim(keyed(body=b"[]")), KeyReused)
    await take(claims, keyed(tenant="u"))
    assert await claims.renew(held)
    assert await claims.finish(held, ANSWER)
    assert await claims.claim(keyed()) == Replay(ANSWER)
    assert isinstance(await claims.claim(keyed(body=b"[]")), KeyReused)
    assert not await claims.finish(held, Recorded(200, {}, b"other")), "one result"
    await claims.release(held, acted=False)
    assert await claims.claim(keyed()) == Replay(ANSWER)
    await claims.aclose()


async def test_release_frees_the_key_or_leaves_it_with_its_request(store: Store) -> None:
    claims = Claims(store, "a")
    await claims.release(await take(claims), acted=False)
    held = await take(claims, keyed(body=b"[]"))
    assert not held.again
    await claims.release(held, acted=True)
    assert isinstance(await claims.claim(keyed()), KeyReused)
    again = await take(claims, keyed(body=b"[]"))
    assert again.again
    await claims.release(again, acted=False)
    assert (await take(claims, keyed(body=b"[]"))).again, "what came before may still have acted"
    await claims.aclose()


async def test_a_lost_lease_is_anothers_and_only_the_new_fence_finishes(store: Store) -> None:
    old, new = Claims(store, "old", lease_s=0.2), Claims(store, "new")
    first = await take(old)
    await old.aclose()  # nobody renews any more
    second = await take_over(new)
    assert second.again
    assert not await old.renew(first)
    assert not await old.finish(first, Recorded(200, {}, b"late"))
    await old.release(first, acted=False)
    assert await new.finish(second, ANSWER)
    assert await new.claim(keyed()) == Replay(ANSWER)
    await new.aclose()


async def test_the_heartbeat_keeps_a_claim_for_longer_than_its_lease(store: Store) -> None:
    claims, other = Claims(store, "a", lease_s=0.5), Claims(store, "b")
    held = await take(claims)
    async with claims.working(held):
        for _ in range(12):
            await asyncio.sleep(0.1)
            assert isinstance(await other.claim(keyed()), InFlight)
    assert await claims.finish(held, ANSWER)
    await claims.aclose()
    await other.aclose()


async def test_who_loses_the_claim_is_stopped(store: Store) -> None:
    claims, other = Claims(store, "a", lease_s=0.6), Claims(store, "b")
    held = await take(claims)
    with pytest.raises(ClaimLost):
        async with claims.working(held), asyncio.timeout(10):
            await other.release(held, acted=True)  # as if another had taken it over
            await asyncio.Event().wait()
    assert not await claims.finish(held, ANSWER)
    await claims.aclose()


async def test_who_cannot_renew_is_stopped_before_the_lease_is_over(store: Store) -> None:
    claims = Claims(store, "a", lease_s=0.6)
    held = await take(claims)

    claims._store = Away()
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(ClaimLost):
        async with claims.working(held), asyncio.timeout(10):
            await asyncio.Event().wait()
    assert loop.time() - began_at < 0.65
    await claims.aclose()


async def test_claims_that_cannot_be_given_back_are_told_once_an_outage(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    claims, away = Claims(store, "a"), Away()

    async def lost_in_an_outage(number: int) -> None:
        held = [await take(claims, keyed(f"{number}-{n}")) for n in range(3)]
        claims._store = away
        for one in held:
            claims.release_soon(one, acted=False)
        await asyncio.gather(*claims._leaving, return_exceptions=True)
        claims._store = store

    with caplog.at_level(logging.WARNING, "cluster.gateway.claims"):
        await lost_in_an_outage(1)
        assert len(caplog.records) == 1
        await lost_in_an_outage(2)
    assert [one.levelname for one in caplog.records] == ["WARNING"] * 2
    await claims.aclose()


async def test_a_caller_that_leaves_while_it_claims_leaves_the_key_free(store: Store) -> None:
    claims = Claims(store, "a", lease_s=60)
    asking = asyncio.ensure_future(claims.claim(keyed()))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(await take_over(claims), Claimed)
    await claims.aclose()


async def test_what_has_expired_is_removed_and_nothing_else(store: Store) -> None:
    brief, long = Claims(store, "a", keep_s=0.0), Claims(store, "b")
    await take(brief, keyed("old"))
    await take(long, keyed("new"))
    assert await long.sweep() == 1
    assert await long.sweep() == 0
    assert isinstance(await long.claim(keyed("new")), InFlight)
    await brief.aclose()
    await long.aclose()


async def test_all_that_has_expired_goes_in_one_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rate of keys: the table would grow for ever where more expire than a step removes."""
    monkeypatch.setattr(module, "_SWEEP_EVERY_S", 0.5)
    monkeypatch.setattr(module, "_TOGETHER", 3)
    brief, long = Claims(store, "a", keep_s=0.0), Claims(store, "b")
    for n in range(20):
        await brief.claim(keyed(f"old-{n}"))
    await brief.aclose()
    steps = [0]
    sweep = long.sweep

    async def counted() -> int:
        steps[0] += 1
        return await sweep()

    monkeypatch.setattr(long, "sweep", counted)
    await take(long, keyed("new"))
    async with asyncio.timeout(10):
        # 7 that find something and one that does not; a second sweep would begin later
        while steps[0] < 8:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.01)
    await long.aclose()
    assert await long.sweep() == 0


async def test_a_renewal_that_fails_for_another_reason_is_not_the_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = Claims(store, "a", lease_s=0.6)
    held = await take(claims)
    renew, renewed = claims._renew, [0]

    async def fails_at_first(some: Any) -> Any:
        renewed[0] += 1
        if renewed[0] == 1:
            raise RuntimeError("a bug")
        return await renew(some)

    monkeypatch.setattr(claims, "_renew", fails_at_first)
    async with claims.working(held), asyncio.timeout(10):
        while renewed[0] < 5:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.01)
    await claims.aclose()


async def test_who_reads_a_recorded_answer_may_take_longer_than_the_lease(store: Store) -> None:
    claims = Claims(store, "a", lease_s=0.3)
    held = await take(claims)
    async with claims.working(held):
        assert await claims.finish(held, ANSWER)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3 * claims.lease_s)
    await claims.aclose()


async def test_of_several_processes_one_gets_each_key(
    store: Store, store_setting: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.contract.test_claims_contract", store_setting, str(KEYS)]
    processes = [
        await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    told = [(await process.communicate())[0].decode().split() for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    won = [key for keys in told for key in keys]
    assert sorted(won) == sorted(f"key-{n}" for n in range(KEYS)), "each key once"


async def _compete(setting: str, keys: int) -> None:
    store = await open_store(setting, Path("/nowhere"))
    assert store is not None
    claims = Claims(store, f"process-{id(store)}")
    names = [f"key-{n}" for n in range(keys)]
    outcomes = await asyncio.gather(*(claims.claim(keyed(name)) for name in names))
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, Claimed):
            print(name)
            await claims.finish(outcome, ANSWER)
        else:
            assert isinstance(outcome, InFlight | Replay), outcome
    await claims.aclose()
    await store.close()


if __name__ == "__main__":
    asyncio.run(_compete(sys.argv[1], int(sys.argv[2])))
