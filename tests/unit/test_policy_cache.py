"""The answer cache: how long an answer is good, what it is worth, and one caller who asks for many."""

from __future__ import annotations

import asyncio

import pytest

from policies.answer_store import AnswersUnavailable, Kept, MemoryAnswers
from policies.cache import FRESH, MISS, STALE, Cache, CacheSettings, Terms
from policies.flights import Flights, Lead
from tests.fakes.virtual_time import run

ASKED = Terms("acme", "tiny", "r1", "p1", "staff", '{"messages":["hello"]}')


class Wall:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def anybody() -> bool:
    return True


async def kept_in(cache: Cache) -> Kept:
    kept = await cache.keep(ASKED, b"answer", tokens=3, saved_s=0.5)
    assert kept is not None
    return kept


@pytest.mark.parametrize(
    ("age_s", "state"), [(0, FRESH), (59.9, FRESH), (60.1, STALE), (599.9, STALE), (600.1, MISS)]
)
async def test_an_answer_ages(age_s: float, state: str) -> None:
    wall = Wall()
    cache = Cache(MemoryAnswers(wall=wall), CacheSettings(fresh_s=60, stale_s=600))
    await kept_in(cache)
    wall.at += age_s
    found = await cache.look(ASKED, anybody)
    assert found.state == state
    assert (found.kept is None) == (state == MISS)
    if state != MISS:
        assert found.age_s == pytest.approx(age_s, abs=0.01)


async def test_a_bound_that_is_lowered_holds_for_what_was_kept_before() -> None:
    wall = Wall()
    store = MemoryAnswers(wall=wall)
    await kept_in(Cache(store, CacheSettings(fresh_s=60, stale_s=600)))
    wall.at += 20
    assert (await Cache(store, CacheSettings(fresh_s=10, stale_s=30)).look(ASKED, anybody)).state == STALE


async def test_a_bound_that_is_raised_does_not_make_older_answers_good_again() -> None:
    wall = Wall()
    store = MemoryAnswers(wall=wall)
    await kept_in(Cache(store, CacheSettings(fresh_s=10, stale_s=30)))
    wall.at += 20
    assert (await Cache(store, CacheSettings(fresh_s=60, stale_s=600)).look(ASKED, anybody)).state == STALE


async def test_an_answer_that_is_too_long_is_not_kept() -> None:
    cache = Cache(MemoryAnswers(), CacheSettings(most_bytes=3))
    assert await cache.keep(ASKED, b"long", tokens=1, saved_s=0.1) is None
    assert (await cache.look(ASKED, anybody)).state == MISS


async def test_a_store_that_is_away_is_a_miss_and_no_error() -> None:
    class Away(MemoryAnswers):
        async def get(self, key: str) -> Kept | None:
            raise AnswersUnavailable("away")

        async def put(self, kept: Kept) -> None:
            raise AnswersUnavailable("away")

    cache = Cache(Away())
    assert await cache.keep(ASKED, b"answer", tokens=1, saved_s=0.1) is not None, "who waits gets it"
    found = await cache.look(ASKED, anybody)
    assert (found.state, found.lost) == (MISS, True)


async def test_memory_is_bounded_and_the_least_used_go_first() -> None:
    store = MemoryAnswers()
    cache = Cache(store)
    terms = [Terms("acme", "tiny", "r1", "p1", "staff", str(number)) for number in range(4)]
    first = await cache.keep(terms[0], b"x" * 100, tokens=1, saved_s=0.1)
    assert first is not None
    bounded = MemoryAnswers(3 * first.size)
    cache = Cache(bounded)
    for one in terms[:3]:
        await cache.keep(one, b"x" * 100, tokens=1, saved_s=0.1)
    await cache.look(terms[0], anybody)
    await cache.keep(terms[3], b"x" * 100, tokens=1, saved_s=0.1)
    there = [(await cache.look(one, anybody)).state for one in terms]
    assert there == [FRESH, MISS, FRESH, FRESH]
    assert bounded.size <= 3 * first.size


@pytest.mark.parametrize(
    "wrong",
    [{"fresh_s": 0}, {"fresh_s": 5, "stale_s": 4}, {"wait_s": -1}, {"wrong_share": 2}, {"most_bytes": -1}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        CacheSettings(**wrong)  # type: ignore[arg-type]


def test_what_a_wrong_answer_costs_counts_by_how_likely_it_is() -> None:
    settings = CacheSettings(wrong_cost_s=100, wrong_share=0.001, stale_wrong_share=0.1)
    assert settings.expected_wrong_s(FRESH) == pytest.approx(0.1)
    assert settings.expected_wrong_s(STALE) == pytest.approx(10)
    assert settings.expected_wrong_s(MISS) == 0


# --- one flight a question -----------------------------------------------------------------------------------


def test_twenty_who_ask_at_once_are_answered_by_one() -> None:
    async def main() -> None:
        flights: Flights[str] = Flights()
        done = 0

        async def caller() -> str | None:
            nonlocal done
            place = await flights.join("key", 60)
            if not isinstance(place, Lead):
                return place
            with place:
                await asyncio.sleep(1)
                done += 1
                place.land("answer")
            return "answer"

        assert set(await asyncio.gather(*(caller() for _ in range(20)))) == {"answer"}
        assert (done, len(flights)) == (1, 0)

    run(main())


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_where_the_leader_does_not_land_the_next_leads(end: str) -> None:
    async def main() -> None:
        flights: Flights[str] = Flights()
        led: list[int] = []

        async def caller(number: int) -> str | None:
            place = await flights.join("key", 60)
            if not isinstance(place, Lead):
                return place
            with place:
                led.append(number)
                await asyncio.sleep(1)
                if number == 0:
                    raise RuntimeError("failed")
                place.land("answer")
            return "answer"

        tasks = [asyncio.ensure_future(caller(number)) for number in range(5)]
        if end == "is cancelled":
            await asyncio.sleep(0.5)
            tasks[0].cancel()
        others = await asyncio.gather(*tasks, return_exceptions=True)
        assert others[1:] == ["answer"] * 4
        assert led == [0, 1], "one of those who waited leads, and only one"

    run(main())


def test_where_the_answer_is_for_nobody_else_all_go_alone_at_once() -> None:
    async def main() -> None:
        flights: Flights[str] = Flights()
        lead = await flights.join("key", 60)
        assert isinstance(lead, Lead)
        others = [asyncio.ensure_future(flights.join("key", 60)) for _ in range(5)]
        await asyncio.sleep(1)
        lead.disband()
        assert await asyncio.gather(*others) == [None] * 5
        assert asyncio.get_running_loop().time() == pytest.approx(1)
        assert isinstance(await flights.join("key", 60), Lead), "who comes later leads again"

    run(main())


def test_nobody_waits_longer_than_the_bound() -> None:
    async def main() -> None:
        flights: Flights[str] = Flights()
        lead = await flights.join("key", 60)
        assert isinstance(lead, Lead)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await flights.join("key", 3) is None
        assert loop.time() - began == pytest.approx(3)

    run(main())


def test_a_follower_that_leaves_does_not_take_the_answer_from_the_others() -> None:
    async def main() -> None:
        flights: Flights[str] = Flights()
        lead = await flights.join("key", 60)
        assert isinstance(lead, Lead)
        leaver, stayer = (asyncio.ensure_future(flights.join("key", 60)) for _ in range(2))
        await asyncio.sleep(0.1)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        lead.land("answer")
        assert await stayer == "answer"

    run(main())
