"""How each store fails: what it says, whether the work may have been done, and that it comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import Connection, func, select, text
from sqlalchemy.util import await_only

from chaos.links import LinkFaults
from chaos.toxics import Toxic
from cluster.gateway.store.opening import StoreOpenError, open_store
from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import QUOTA_WINDOWS
from cluster.public import claim_run_dir
from tests.contract.toxiproxy import LinkUnderTest, under_test
from tests.fakes.postgres import PASSWORD, Postgres
from tests.fakes.store_racer import window
from tests.ports import free_port


def add(number: int) -> Callable[[Connection], bool]:
    return lambda connection: insert_if_absent(connection, QUOTA_WINDOWS, window(number))


def numbers(connection: Connection) -> list[int]:
    column = QUOTA_WINDOWS.c.window_start
    return list(connection.execute(select(column).order_by(column)).scalars())


@contextlib.asynccontextmanager
async def opened(setting: str, **more: float) -> AsyncIterator[Store]:
    store = await open_store(setting, Path("/nowhere"), **more)
    assert store is not None
    try:
        yield store
    finally:
        await store.close()


# --- SQLite ----------------------------------------------------------------------------------------------


async def test_a_file_that_was_removed_takes_no_more_work(tmp_path: Path):
    path = tmp_path / "store.db"
    async with opened(f"sqlite:///{path}") as store:
        await store.write(add(1))
        path.rename(tmp_path / "away.db")
        for ask in (store.write(add(2)), store.read(numbers), store.write(add(3))):
            with pytest.raises(StoreUnavailable, match="the store failed"):
                await ask
        assert not path.exists(), "a new one would have no tables"
        (tmp_path / "away.db").rename(path)
        assert await store.write(add(4))
        assert await store.read(numbers) == [1, 4]


async def test_a_file_that_is_no_database_is_refused_with_its_name(tmp_path: Path):
    path = tmp_path / "store.db"
    path.write_bytes(b"something else, long enough to be looked at " * 100)
    with pytest.raises(StoreOpenError, match=r"BROWNOUT_STORE.*store\.db.*not a database.*move it away"):
        await open_store(f"sqlite:///{path}", tmp_path)


async def test_a_damaged_page_fails_and_does_not_lie(tmp_path: Path):
    path = tmp_path / "store.db"
    page_of = "SELECT rootpage FROM sqlite_master WHERE name = 'quota_windows'"
    async with opened(f"sqlite:///{path}") as store:
        await store.write(add(1))
        page = await store.read(lambda connection: connection.exec_driver_sql(page_of).scalar_one())
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"damaged " * 512)
    async with opened(f"sqlite:///{path}") as store:
        for ask in (store.read(numbers), store.write(add(2))):
            with pytest.raises(StoreUnavailable, match="malformed"):
                await ask


async def test_a_full_disk_fails_all_that_share_the_flush_and_the_next_one_goes_on(tmp_path: Path):
    def full(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.execute(QUOTA_WINDOWS.insert().values(window(1) | {"quota": "x" * 100_000}))

    async with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        with pytest.raises(StoreUnavailable, match="full"):
            await store.write(full)
        assert await store.write(add(2))
        assert await store.read(numbers) == [2]


async def test_work_that_arrives_together_shares_a_flush(tmp_path: Path):
    statements: list[str] = []

    def listen(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.set_trace_callback(statements.append)

    async with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        await store.write(listen)
        await asyncio.gather(*(store.write(add(number)) for number in range(50)))
        assert await store.read(numbers) == list(range(50))
    commits = sum(statement == "COMMIT" for statement in statements)
    assert 1 <= commits <= 5, "the first may go alone, the others have come by then"


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreOpenError, match=r"BROWNOUT_STORE.*/file/store\.db"):
        await open_store(f"sqlite:///{tmp_path}/file/store.db", tmp_path)


async def test_others_may_not_read_the_file(tmp_path: Path):
    async with opened("sqlite:///" + str(tmp_path / "sub" / "store.db")) as store:
        await store.write(add(1))
        for path in (tmp_path / "sub").glob("store.db*"):
            assert path.stat().st_mode & 0o077 == 0, path


# --- PostgreSQL ------------------------------------------------------------------------------------------


async def test_the_server_is_killed_and_started_again(postgres: Postgres, postgres_url: str):
    async with opened(postgres_url) as store:
        await asyncio.gather(*(store.write(add(number)) for number in range(20)))
        postgres.kill()
        try:
            for ask in (store.write(add(20)), store.read(numbers)):
                with pytest.raises(StoreUnavailable, match="the store failed") as error:
                    await ask
                assert not error.value.maybe_done
                assert PASSWORD not in str(error.value)
        finally:
            postgres.start()
        assert await store.read(numbers) == list(range(20))
        assert await store.write(add(20))


async def test_connections_of_before_a_restart_cost_nobody_an_error(postgres: Postgres, postgres_url: str):
    async with opened(postgres_url) as store:
        await asyncio.gather(*(store.write(add(number)) for number in range(20)))
        postgres.stop()
        postgres.start()
        got = await asyncio.gather(*(store.write(add(number)) for number in range(20, 40)))
        assert got == [True] * 20


async def test_a_connection_that_is_lost_before_the_commit_is_another_try(postgres_url: str):
    lives = 0

    def work(connection: Connection) -> None:
        nonlocal lives
        lives += 1
        add(lives)(connection)
        if lives == 1:
            connection.execute(select(func.pg_terminate_backend(func.pg_backend_pid())))

    async with opened(postgres_url) as store:
        await store.write(work)
        assert await store.read(numbers) == [2]


async def test_a_server_that_is_lost_with_the_commit_may_have_done_it(postgres: Postgres, postgres_url: str):
    def work(connection: Connection) -> None:
        add(1)(connection)
        postgres.kill()

    async with opened(postgres_url) as store:
        try:
            with pytest.raises(StoreUnavailable) as error:
                await store.write(work)
            assert error.value.maybe_done
        finally:
            postgres.start()
        assert await store.read(numbers) in ([], [1])


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_work_that_the_server_undid_is_run_again(postgres_url: str, state: str):
    runs = 0

    def work(connection: Connection) -> int:
        nonlocal runs
        runs += 1
        add(runs)(connection)
        if runs < 3:
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"))
        return runs

    async with opened(postgres_url) as store:
        assert await store.write(work) == 3
        assert await store.read(numbers) == [3]


async def test_work_that_is_undone_again_and_again_is_given_up(postgres_url: str):
    def work(connection: Connection) -> None:
        connection.execute(text("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$"))

    async with opened(postgres_url) as store:
        with pytest.raises(StoreUnavailable) as error:
            await store.write(work)
        assert not error.value.maybe_done


async def test_what_was_not_committed_when_its_caller_lost_patience_is_undone(postgres_url: str):
    def slow(connection: Connection) -> None:
        add(1)(connection)
        connection.execute(select(func.pg_sleep(0.4)))

    async with opened(postgres_url, answer_s=0.25) as store:
        with pytest.raises(StoreUnavailable, match=r"within 0\.25 s") as error:
            await store.write(slow)
        assert not error.value.maybe_done
    async with opened(postgres_url) as store:
        assert await store.read(numbers) == []


async def test_a_link_that_swallows_everything_holds_nothing_for_ever(postgres: Postgres, postgres_url: str):
    database = postgres_url.rpartition("/")[2]
    async with under_test() as url, aiohttp.ClientSession() as session, LinkFaults(url) as faults:
        link = await LinkUnderTest.create(session, url, "store", postgres.port)
        async with opened(postgres.url(database, port=link.port), answer_s=0.5) as store:
            await asyncio.gather(*(store.write(add(number)) for number in range(20)))
            for stream in ("upstream", "downstream"):
                await faults.add("store", Toxic("timeout", {"timeout": 0}, stream=stream))
            asked = (store.write(add(number)) for number in range(20, 40))
            for ended in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(ended, StoreUnavailable)
            for toxic in await faults.toxics("store"):
                await faults.remove("store", toxic.name)
            there: set[int] = set()
            async with asyncio.timeout(60):
                while 40 not in there:
                    with contextlib.suppress(StoreUnavailable):
                        await store.write(add(40))
                        there = set(await store.read(numbers))
            assert there >= set(range(20))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((PASSWORD, "wrong-password"), "password authentication failed"),
        (("/tests_", "/no_such_"), "does not exist"),
    ],
)
async def test_what_is_wrong_with_the_url_is_told_at_once(
    postgres_url: str, change: tuple[str, str], said: str
):
    url = postgres_url.replace(*change)
    with pytest.raises(StoreOpenError, match=f"BROWNOUT_STORE.*{said}.*password and database") as error:
        await open_store(url, Path("/nowhere"), wait_s=60)
    assert PASSWORD not in str(error.value)
    assert "wrong-password" not in str(error.value)


async def test_a_server_that_is_not_there_is_waited_for_and_then_named():
    port = free_port()
    with pytest.raises(StoreOpenError, match=rf"BROWNOUT_STORE.*me:\*\*\*@127\.0\.0\.1:{port}/b"):
        await open_store(f"postgresql://me:secret@127.0.0.1:{port}/b", Path("/nowhere"), wait_s=0)


async def test_a_gateway_that_starts_first_waits_for_its_server(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
):
    postgres.stop()
    try:
        opening = asyncio.create_task(open_store(postgres_url, Path("/nowhere"), wait_s=60))
        async with asyncio.timeout(20):
            while "waiting for the store" not in caplog.text:  # noqa: ASYNC110 (a log has no event)
                await asyncio.sleep(0.01)
        assert PASSWORD not in caplog.text
    finally:
        await asyncio.to_thread(postgres.start)
    store = await opening
    assert store is not None
    assert await store.write(add(1))
    await store.close()


async def test_a_deadlock_costs_one_of_the_two_a_second_try(postgres_url: str):
    both, runs = asyncio.Barrier(2), 0

    def work(first: int, second: int) -> Callable[[Connection], None]:
        def crossing(connection: Connection) -> None:
            nonlocal runs
            runs += 1
            for place, number in enumerate((first, second)):
                row = QUOTA_WINDOWS.c.window_start == number
                connection.execute(
                    QUOTA_WINDOWS.update().where(row).values(leased=QUOTA_WINDOWS.c.leased + 1)
                )
                if place == 0 and runs <= 2:
                    await_only(both.wait())

        return crossing

    async with opened(postgres_url, answer_s=20) as store:
        await store.write(add(1))
        await store.write(add(2))
        await asyncio.gather(store.write(work(1, 2)), store.write(work(2, 1)))
        leased = await store.read(lambda connection: connection.execute(select(QUOTA_WINDOWS.c.leased)).all())
        assert [row.leased for row in leased] == [2, 2]
        assert runs == 3


async def test_the_default_file_is_put_into_no_folder_of_somebody_else(tmp_path: Path):
    (tmp_path / "theirs").touch()
    with pytest.raises(StoreOpenError, match=r"BROWNOUT_STORE.*holds something else.*BROWNOUT_RUN_DIR"):
        await open_store("sqlite", tmp_path)
    store = await open_store("sqlite", tmp_path / "run")
    assert store is not None
    await store.close()
    claim_run_dir(tmp_path / "run")
