"""What every store does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.util import await_only

from cluster.gateway.store.opening import open_store
from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import QUOTA_WINDOWS
from tests.conftest import ROOT
from tests.fakes.store_racer import window

RACERS = 3
SECRET = "a secret prompt"


def add(number: int) -> Callable[[Connection], bool]:
    return lambda connection: insert_if_absent(connection, QUOTA_WINDOWS, window(number))


def numbers(connection: Connection) -> list[int]:
    column = QUOTA_WINDOWS.c.window_start
    return list(connection.execute(select(column).order_by(column)).scalars())


def race(setting: str, name: str, count: int) -> list[list[int]]:
    """Return what each of several processes got that began together."""
    command = [sys.executable, "-m", "tests.fakes.store_racer", setting, name, str(count)]
    racers = [
        subprocess.Popen([*command, str(seed), str(RACERS)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for seed in range(RACERS)
    ]
    try:
        ended = [racer.communicate(timeout=120) for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * RACERS
        return [json.loads(output) for output, _ in ended]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


# --- transactions ----------------------------------------------------------------------------------------


async def test_what_was_written_is_read(store: Store):
    assert await store.write(add(1))
    assert not await store.write(add(1)), "it is there"
    assert await store.read(numbers) == [1]


async def test_what_was_written_is_there_after_the_next_opening(store_setting: str, tmp_path: Path):
    for expected in ([], [0], [0, 1]):
        store = await open_store(store_setting, tmp_path)
        assert store is not None
        assert await store.read(numbers) == expected
        await store.write(add(len(expected)))
        await store.close()


async def test_work_that_raises_leaves_nothing_and_its_error_is_told(store: Store):
    def work(connection: Connection) -> None:
        add(1)(connection)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        await store.write(work)
    assert await store.read(numbers) == []


async def test_an_error_undoes_its_own_work_and_no_other_that_ran_beside_it(store: Store):
    def work(number: int) -> Callable[[Connection], int]:
        def inserted(connection: Connection) -> int:
            connection.execute(insert(QUOTA_WINDOWS).values(window(number)))
            if number % 3 == 0:
                raise KeyError(number)
            if number % 3 == 1:
                connection.execute(insert(QUOTA_WINDOWS).values(window(number)))
            return number

        return inserted

    got = await asyncio.gather(*(store.write(work(number)) for number in range(60)), return_exceptions=True)
    assert [type(one) for one in got[:3]] == [KeyError, IntegrityError, int]
    assert await store.read(numbers) == list(range(2, 60, 3)) == [one for one in got if isinstance(one, int)]


async def test_a_reader_sees_a_transaction_whole_or_not_at_all(store: Store):
    def pair(connection: Connection) -> None:
        add(1)(connection)
        add(2)(connection)

    seen = await asyncio.gather(*(store.read(numbers) for _ in range(10)), store.write(pair))
    assert all(one in ([], [1, 2]) for one in seen[:-1])


async def test_a_reader_has_one_view_although_others_write_meanwhile(store: Store):
    loop = asyncio.get_running_loop()

    def twice(connection: Connection) -> tuple[list[int], list[int]]:
        before = numbers(connection)
        if store.kind == "sqlite":
            asyncio.run_coroutine_threadsafe(store.write(add(1)), loop).result(30)
        else:
            await_only(store.write(add(1)))
        return before, numbers(connection)

    assert await store.read(twice) == ([], [])
    assert await store.read(numbers) == [1]


async def test_the_time_is_the_stores_and_goes_on(store: Store):
    first = await store.read(store_now)
    assert isinstance(first, float)
    assert await store.read(store_now) > first > 1.7e9


@pytest.mark.parametrize(
    "row",
    [
        {"tenant": SECRET, "leased": None},
        {"tenant": f"{SECRET} \ud800"},
        {"tenant": SECRET, "leased": {SECRET: SECRET}},
    ],
    ids=["nothing", "half a character", "another type"],
)
async def test_no_error_tells_what_was_to_be_written(store: Store, row: dict[str, object]):
    def work(connection: Connection) -> None:
        connection.execute(insert(QUOTA_WINDOWS).values(window(1) | row))

    with pytest.raises((DBAPIError, UnicodeError)) as error:
        await store.write(work)
    assert "secret" not in "".join(traceback.format_exception(error.value))


async def test_no_error_tells_what_was_there_already(store: Store):
    def work(connection: Connection) -> None:
        for _ in range(2):
            connection.execute(insert(QUOTA_WINDOWS).values(window(1) | {"tenant": SECRET}))

    with pytest.raises(IntegrityError) as error:
        await store.write(work)
    assert "secret" not in "".join(traceback.format_exception(error.value))


# --- several gateways ------------------------------------------------------------------------------------


def test_a_row_is_inserted_by_exactly_one_of_several_processes(store_setting: str):
    rows = 1000  # of a few, one process had taken all before another got its first turn
    got = race(store_setting, "claim", rows)
    assert sorted(one for racer in got for one in racer) == list(range(rows))
    assert sum(bool(racer) for racer in got) > 1, "there was no race"


def test_a_ticket_goes_to_exactly_one_of_several_processes(store_setting: str):
    got = race(store_setting, "lease", 40)
    assert sorted(one for racer in got for one in racer) == list(range(1, RACERS * 40 + 1))


# --- callers that give up, and the end -------------------------------------------------------------------


async def test_a_caller_that_was_cancelled_leaves_its_transaction_to_end(
    store: Store, store_setting: str, tmp_path: Path
):
    callers = [asyncio.create_task(store.write(add(number))) for number in range(30)]
    await asyncio.sleep(0)  # all have asked
    for caller in callers:
        caller.cancel()
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    await store.close()
    again = await open_store(store_setting, tmp_path)
    assert again is not None
    assert await again.read(numbers) == list(range(30))
    await again.close()


async def test_closing_lets_what_is_under_way_end(store: Store, store_setting: str, tmp_path: Path):
    writing = [asyncio.create_task(store.write(add(number))) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writing) == [True] * 20
    again = await open_store(store_setting, tmp_path)
    assert again is not None
    assert await again.read(numbers) == list(range(20))
    await again.close()


async def test_a_closed_store_says_so_and_closes_twice(store: Store):
    await store.close()
    await store.close()
    for asked in (store.write(add(1)), store.read(numbers)):
        with pytest.raises(StoreUnavailable, match="closed") as error:
            await asked
        assert not error.value.maybe_done


async def test_one_that_does_not_answer_in_time_says_so(store_setting: str, tmp_path: Path):
    store = await open_store(store_setting, tmp_path, answer_s=0.2)
    assert store is not None
    release = threading.Event()

    def slow(connection: Connection) -> None:
        if store.kind == "sqlite":
            release.wait(60)
        else:
            connection.execute(select(func.pg_sleep(60)))

    try:
        with pytest.raises(StoreUnavailable, match=r"within 0\.2 s"):
            await store.write(slow)
    finally:
        release.set()
        await store.close()
