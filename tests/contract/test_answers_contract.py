"""What is kept of answers, on SQLite and on PostgreSQL: the same record comes back, bounded, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from cluster.gateway.answers import BackedAnswers, SqlAnswers
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import ANSWERS
from policies.answer_store import AnswersUnavailable, MemoryAnswers
from policies.cache import FRESH, MISS, STALE, Cache, CacheSettings, Terms


def terms(number: int = 0, tenant: str = "acme") -> Terms:
    return Terms(tenant, "tiny", "r1", "p1", "staff", f'{{"prompt":"{number} \ud83d\ude00"}}')


def anybody() -> bool:
    return True


async def keep(cache: Cache, asked: Terms, body: bytes = b"answer") -> None:
    assert await cache.keep(asked, body, tokens=7, saved_s=1 / 3) is not None


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(ANSWERS)).scalar_one()


async def test_a_record_comes_back_as_it_was(store: Store) -> None:
    answers = SqlAnswers(store)
    cache = Cache(answers)
    kept = await cache.keep(terms(), bytes(range(256)), tokens=7, saved_s=1 / 3)
    assert kept is not None
    assert await answers.get(kept.key) == kept
    assert (await cache.look(terms(), anybody)).state == FRESH
    assert (await cache.look(terms(1), anybody)).state == MISS


async def test_a_later_answer_takes_the_place_of_the_earlier(store: Store) -> None:
    cache = Cache(SqlAnswers(store))
    await keep(cache, terms(), b"first")
    await keep(cache, terms(), b"second")
    found = await cache.look(terms(), anybody)
    assert found.kept is not None
    assert found.kept.body == b"second"
    assert await store.read(count) == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("tenant", "rival"),
        ("described", "{}"),
        ("body", b"another"),
        ("body_digest", "0" * 64),
        ("tokens", 8),
        ("saved_s", 99.0),
        ("fresh_until", 9e9),
        ("stale_until", 9e9),
        ("stored_at", 1.0),
    ],
)
async def test_a_row_that_was_altered_is_a_miss_and_is_put_out(store: Store, column: str, value: Any) -> None:
    cache = Cache(SqlAnswers(store))
    await keep(cache, terms())
    await store.write(lambda connection: connection.execute(update(ANSWERS).values({column: value})) and None)
    assert (await cache.look(terms(), anybody)).kept is None
    assert await store.read(count) == 0


async def test_a_tenant_is_bounded_and_its_oldest_go_first(store: Store) -> None:
    at = 1e9
    answers = SqlAnswers(store, most_bytes=300, wall=lambda: at)
    cache = Cache(answers, CacheSettings(fresh_s=1e9, stale_s=2e9))
    await keep(cache, terms(0, "rival"), b"r" * 100)
    for number in range(5):
        at += 1
        await keep(cache, terms(number), b"x" * 100)
    there = [(await cache.look(terms(number), anybody)).kept is not None for number in range(5)]
    assert there == [False, False, True, True, True]
    assert (await cache.look(terms(0, "rival"), anybody)).kept is not None, "others are not pressed"


async def test_what_is_past_any_use_is_swept(store: Store) -> None:
    answers = SqlAnswers(store)
    await keep(Cache(answers, CacheSettings(fresh_s=0.001, stale_s=0.001)), terms(0))
    await keep(Cache(answers), terms(1))
    while (await answers.get(Cache(answers).key(terms(0)))) is not None:
        await answers.sweep()
    assert await store.read(count) == 1


async def test_a_gateway_whose_clock_is_wrong_goes_by_the_stores(store: Store) -> None:
    right, wrong = SqlAnswers(store), SqlAnswers(store, wall=lambda: 1e9)
    await keep(Cache(right), terms())
    cache = Cache(wrong)
    assert (await cache.look(terms(), anybody)).state == FRESH
    assert wrong.now() == pytest.approx(right.now(), abs=5)


async def test_what_one_gateway_keeps_another_finds_and_both_are_in_step(store: Store) -> None:
    settings = CacheSettings(fresh_s=60, stale_s=600)
    backed = [BackedAnswers(SqlAnswers(store), MemoryAnswers()) for _ in range(2)]
    one, other = (Cache(answers, settings) for answers in backed)
    try:
        await keep(one, terms(), b"from one")
        await backed[0].flush()
        found = await other.look(terms(), anybody)
        assert (found.state, found.kept and found.kept.body) == (FRESH, b"from one")
        await store.write(
            lambda connection: connection.execute(update(ANSWERS).values(body=b"altered")) and None
        )
        assert (await other.look(terms(), anybody)).state == FRESH, "what is in memory is not read again"
        await backed[1].drop(one.key(terms()))
        assert (await other.look(terms(), anybody)).state == MISS
    finally:
        for answers in backed:
            await answers.aclose()


async def test_a_later_answer_of_another_gateway_is_found_when_ones_own_has_aged(store: Store) -> None:
    ages = CacheSettings(fresh_s=60, stale_s=600)
    near = MemoryAnswers()
    backed = BackedAnswers(SqlAnswers(store), near)
    cache = Cache(backed, ages)
    try:
        old = Cache(SqlAnswers(store), CacheSettings(fresh_s=0.001, stale_s=600))
        near.place(old.record(terms(), b"old", tokens=1, saved_s=0.1))
        state = FRESH
        while state == FRESH:
            state = (await cache.look(terms(), anybody)).state
        assert state == STALE
        await keep(Cache(SqlAnswers(store), ages), terms(), b"new")
        found = await cache.look(terms(), anybody)
        assert (found.state, found.kept and found.kept.body) == (FRESH, b"new")
    finally:
        await backed.aclose()


async def test_a_look_that_is_cancelled_gives_nobody_else_its_answer(store: Store) -> None:
    cache = Cache(SqlAnswers(store))
    for number in range(4):
        await keep(cache, terms(number), str(number).encode())
    for _ in range(10):
        looks = [asyncio.ensure_future(cache.look(terms(number), anybody)) for number in range(4)]
        await asyncio.sleep(0)
        looks[0].cancel()
        looks[2].cancel()
        found = await asyncio.gather(*looks, return_exceptions=True)
        bodies = [one.kept.body for one in found if not isinstance(one, BaseException) and one.kept]
        assert set(bodies) <= {b"0", b"1", b"2", b"3"}
        assert b"1" in bodies
        assert b"3" in bodies


class _Away:
    kind = "away"

    def __init__(self) -> None:
        self.asked = 0

    async def read(self, work: Any) -> Any:
        self.asked += 1
        raise StoreUnavailable("away")

    write = read

    async def close(self) -> None:
        return None


async def test_a_store_that_is_away_is_not_asked_at_every_call() -> None:
    at, away = 0.0, _Away()
    answers = SqlAnswers(away, wall=lambda: at)
    for _ in range(5):
        with pytest.raises(AnswersUnavailable):
            await answers.get("key")
    assert away.asked == 1
    at += 2
    with pytest.raises(AnswersUnavailable):
        await answers.get("key")
    assert away.asked == 2


async def test_memory_goes_on_where_the_store_is_away() -> None:
    backed = BackedAnswers(SqlAnswers(_Away()), MemoryAnswers())
    cache = Cache(backed)
    await keep(cache, terms())
    assert (await cache.look(terms(), anybody)).state == FRESH
    assert (await cache.look(terms(1), anybody)).lost
    await backed.aclose()
