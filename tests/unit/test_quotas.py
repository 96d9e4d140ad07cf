"""Quotas: leased to gateways in blocks, reserved before the work, settled after it (faults 7 and 22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection, select

from cluster.gateway import quotas as module
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.identity import Identity, QuotaLimits
from cluster.gateway.quotas import REQUESTS, TOKENS, WINDOW_S, Quotas, Reservation, reserve
from cluster.gateway.store.sqlite import SqliteStore
from cluster.gateway.store.store import StoreUnavailable
from cluster.gateway.store.tables import QUOTA_WINDOWS
from policies.errors import FailedClosed, QuotaExceeded
from tests.fakes.gateway import sqlite_store
from tests.fakes.policy_bench import FixedClock

T = TypeVar("T")


class Time:
    """One wall clock for the store and the gateways; it stands still unless it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FixedClock()
        monkeypatch.setattr(module, "store_now", lambda connection: self.now)

    @property
    def now(self) -> float:
        return 1_000_020.0 + self.clock.at  # a window began at 1_000_020

    def pass_(self, seconds: float) -> None:
        self.clock.at += seconds


class Broken:
    """A store that does not answer."""

    kind = "sqlite"

    async def write(self, work: Callable[[Connection], T]) -> T:
        raise StoreUnavailable("gone")

    async def read(self, work: Callable[[Connection], T]) -> T:
        raise StoreUnavailable("gone")

    async def close(self) -> None:
        return None


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = sqlite_store(tmp_path / "store.db")
    yield opened
    await opened.close()


def tenant(requests: int | None = None, tokens: int | None = None, name: str = "acme") -> Identity:
    return Identity(name, "web", "k", quotas=QuotaLimits(requests, tokens))


async def granted(quotas: Quotas, who: Identity, tokens: int = 1) -> Reservation | None:
    try:
        return await quotas.reserve(who, tokens)
    except QuotaExceeded:
        return None


async def leased(store: SqliteStore) -> list[int]:
    return await store.read(
        lambda connection: [row[0] for row in connection.execute(select(QUOTA_WINDOWS.c.leased))]
    )


@pytest.mark.parametrize("gateways", [1, 2])
async def test_parallel_calls_through_all_gateways_get_the_limit_and_no_more(
    store: SqliteStore, time: Time, gateways: int
) -> None:
    """Faults 7 and 22: all of them ask in one instant."""
    all_of_them = [Quotas(store, time.clock) for _ in range(gateways)]
    who = tenant(requests=100)
    results = await asyncio.gather(*(granted(all_of_them[n % gateways], who) for n in range(300)))
    got = sum(one is not None for one in results)
    assert got <= 100
    assert got >= 100 - 5 * (gateways - 1), "no more than a block is lost to each further gateway"
    assert await leased(store) == [100]


async def test_tokens_are_counted_together_too(store: SqliteStore, time: Time) -> None:
    gateways = [Quotas(store, time.clock) for _ in range(2)]
    who = tenant(tokens=10_000)
    results = await asyncio.gather(*(granted(gateways[n % 2], who, 300) for n in range(100)))
    got = 300 * sum(one is not None for one in results)
    assert 10_000 - 2 * 500 <= got <= 10_000


async def test_most_calls_do_not_ask_the_store(store: SqliteStore, time: Time) -> None:
    asked: list[tuple[str, str]] = []
    quotas = Quotas(store, time.clock, counted=lambda quota, outcome: asked.append((quota, outcome)))
    who = tenant(requests=1000)
    for _ in range(1000):
        await quotas.reserve(who, 1)
    assert asked == [(REQUESTS, "granted")] * 20
    assert await granted(quotas, who) is None
    assert await granted(quotas, who) is None
    assert asked[20:] == [(REQUESTS, "empty")], "once it is known that nothing is left nobody asks again"


async def test_calls_that_arrive_together_share_one_lease(store: SqliteStore, time: Time) -> None:
    asked: list[str] = []
    quotas = Quotas(store, time.clock, counted=lambda quota, outcome: asked.append(quota))
    await asyncio.gather(*(quotas.reserve(tenant(requests=1000), 1) for _ in range(500)))
    assert len(asked) <= 12


async def test_what_was_not_used_goes_back_and_what_was_used_does_not(store: SqliteStore, time: Time) -> None:
    quotas, who = Quotas(store, time.clock), tenant(tokens=1000)
    first = await quotas.reserve(who, 1000)
    assert await granted(quotas, who, 1) is None
    first.settle(300)
    first.settle(0)
    first.release()
    assert await granted(quotas, who, 701) is None
    second = await granted(quotas, who, 700)
    assert second is not None
    second.release()
    assert await granted(quotas, who, 700) is not None


async def test_what_was_used_beyond_the_reservation_is_owed(store: SqliteStore, time: Time) -> None:
    quotas, who = Quotas(store, time.clock), tenant(tokens=1000)
    (await quotas.reserve(who, 100)).settle(600)
    assert await granted(quotas, who, 401) is None
    assert await granted(quotas, who, 400) is not None


async def test_a_request_counts_once_it_was_answered_and_not_if_nothing_was_done(
    store: SqliteStore, time: Time
) -> None:
    quotas, who = Quotas(store, time.clock), tenant(requests=2)
    (await quotas.reserve(who, 5)).settle(5)
    (await quotas.reserve(who, 5)).release()
    assert await granted(quotas, who) is not None
    assert await granted(quotas, who) is None


async def test_the_next_minute_is_a_new_one(store: SqliteStore, time: Time) -> None:
    quotas, who = Quotas(store, time.clock), tenant(requests=1)
    held = await quotas.reserve(who, 1)
    time.pass_(WINDOW_S - 1)
    with pytest.raises(QuotaExceeded) as refused:
        await quotas.reserve(who, 1)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    time.pass_(refused.value.retry_after_s)
    assert await granted(quotas, who) is not None
    held.release()
    assert await granted(quotas, who) is None, "what comes back late belongs to a minute that is over"


async def test_windows_of_long_ago_are_removed(store: SqliteStore, time: Time) -> None:
    quotas = Quotas(store, time.clock)
    for _ in range(15):
        await quotas.reserve(tenant(requests=10), 1)
        time.pass_(WINDOW_S)
    assert len(await leased(store)) == 11


async def test_tenants_do_not_share(store: SqliteStore, time: Time) -> None:
    quotas = Quotas(store, time.clock)
    await quotas.reserve(tenant(requests=1), 1)
    assert await granted(quotas, tenant(requests=1)) is None
    assert await granted(quotas, tenant(requests=1, name="other")) is not None


async def test_a_request_refused_for_its_tokens_does_not_count_as_one(store: SqliteStore, time: Time) -> None:
    quotas = Quotas(store, time.clock)
    who = tenant(requests=2, tokens=100)
    await quotas.reserve(who, 100)
    assert await granted(quotas, who, 50) is None
    time_left = tenant(requests=2)
    assert await granted(quotas, time_left) is not None
    assert await granted(quotas, time_left) is None


async def test_a_call_larger_than_the_quota_is_told_so_at_once(store: SqliteStore, time: Time) -> None:
    with pytest.raises(InvalidRequest, match="has 100 a minute") as refused:
        await Quotas(store, time.clock).reserve(tenant(tokens=100), 101)
    assert refused.value.code == "request_exceeds_quota"


async def test_without_the_store_nobody_with_a_quota_is_served(time: Time) -> None:
    quotas = Quotas(Broken(), time.clock)
    for held in (quotas, None):
        with pytest.raises(FailedClosed) as refused:
            await reserve(held, tenant(tokens=100), 1)
        assert refused.value.code == "quota_unavailable"
        await reserve(held, tenant(), 1_000_000)


async def test_who_leaves_while_a_block_is_leased_loses_nothing(store: SqliteStore, time: Time) -> None:
    quotas, who = Quotas(store, time.clock), tenant(tokens=100)
    leaving = asyncio.ensure_future(quotas.reserve(who, 100))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await quotas.aclose()
    assert await granted(quotas, who, 100) is not None


async def test_the_row_is_named_by_tenant_and_quota(store: SqliteStore, time: Time) -> None:
    await Quotas(store, time.clock).reserve(tenant(requests=10, tokens=100), 5)
    rows = await store.read(
        lambda connection: {
            tuple(row)
            for row in connection.execute(
                select(QUOTA_WINDOWS.c.tenant, QUOTA_WINDOWS.c.quota, QUOTA_WINDOWS.c.window_start)
            )
        }
    )
    assert rows == {("acme", REQUESTS, 1_000_020), ("acme", TOKENS, 1_000_020)}


async def test_a_clock_that_is_set_back_stops_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another server takes over: what it says now is what holds."""
    now = [1_000_020.0]
    monkeypatch.setattr(module, "store_now", lambda connection: now[0])
    quotas, who = Quotas(store, FixedClock()), tenant(requests=3)
    assert await granted(quotas, who) is not None
    now[0] -= 3 * WINDOW_S
    async with asyncio.timeout(5):
        assert [await granted(quotas, who) is not None for _ in range(5)] == [True] * 3 + [False] * 2
