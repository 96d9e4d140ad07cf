"""Fixtures: a store with empty tables, once on SQLite and once on PostgreSQL.

``store`` is one that is open; ``store_setting`` is what to give to ``open_store``, or to a process as
``BROWNOUT_STORE``, where a test wants several gateways on one store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.gateway.store.opening import open_store
from cluster.gateway.store.store import Store
from tests.fakes.postgres import Postgres, find_binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server of our own. A test that stops it starts it again."""
    binaries = find_binaries()
    if binaries is None:
        reason = "PostgreSQL is not installed (Debian: postgresql-15)"
        if os.environ.get("BROWNOUT_REQUIRE_ENGINE") == "1":
            pytest.fail(f"BROWNOUT_REQUIRE_ENGINE=1, but {reason}")
        pytest.skip(reason)
    server = Postgres(binaries)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def migrated_database(postgres: Postgres) -> str:
    """The name of a database with all tables, to copy from."""
    name = postgres.new_database()

    async def migrate() -> None:
        store = await open_store(postgres.url(name), Path("/nowhere"))
        assert store is not None
        await store.close()

    asyncio.run(migrate())
    return name


@pytest.fixture
def postgres_url(postgres: Postgres, migrated_database: str) -> Iterator[str]:
    """A PostgreSQL database of the test's own, with empty tables."""
    name = postgres.new_database(template=migrated_database)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_setting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A value of the setting ``store``; the tables are there and empty, or are made at the first opening."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest_asyncio.fixture
async def store(store_setting: str, tmp_path: Path) -> AsyncIterator[Store]:
    """An open store with empty tables."""
    opened = await open_store(store_setting, tmp_path)
    assert opened is not None
    yield opened
    await opened.close()
