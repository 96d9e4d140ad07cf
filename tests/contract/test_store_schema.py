"""The migrations make the tables of the code, also when several gateways start at once; later schemas are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, MetaData, String, Table

from cluster.gateway.store.opening import StoreOpenError, open_store
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import METADATA

VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32)))


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return list(compare_metadata(context, METADATA))


async def test_the_migrations_make_the_tables_of_the_code(store: Store):
    assert await store.read(differences) == []


async def test_the_comparison_notices_what_is_missing(store: Store):
    def without_a_column(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN reason")
        connection.exec_driver_sql("DROP INDEX audit_by_request")

    await store.write(without_a_column)
    assert len(await store.read(differences)) == 2


async def test_opening_again_changes_nothing(store: Store, store_setting: str, tmp_path: Path, caplog):
    caplog.set_level("INFO")
    again = await open_store(store_setting, tmp_path)
    assert again is not None
    await again.close()
    assert "brought up to date" not in caplog.text


async def test_gateways_that_start_together_make_the_tables_once(
    postgres, tmp_path: Path, caplog, request: pytest.FixtureRequest
):
    caplog.set_level("INFO")
    empty = postgres.new_database()
    request.addfinalizer(lambda: postgres.drop(empty))
    for setting in (f"sqlite:///{tmp_path / 'store.db'}", postgres.url(empty)):
        caplog.clear()
        stores = await asyncio.gather(*(open_store(setting, tmp_path) for _ in range(4)))
        for store in stores:
            assert store is not None
            assert await store.read(differences) == []
            await store.close()
        assert caplog.text.count("brought up to date with 0001") == 1


async def test_a_schema_of_a_later_version_is_refused(store: Store, store_setting: str, tmp_path: Path):
    await store.write(lambda connection: connection.execute(VERSION.update().values(version_num="9999")))
    with pytest.raises(StoreOpenError, match=r"BROWNOUT_STORE.*schema is 9999.*up to 0001 only") as error:
        await open_store(store_setting, tmp_path)
    assert "for-tests-only" not in str(error.value)
    await store.write(lambda connection: connection.execute(VERSION.update().values(version_num="0001")))
    again = await open_store(store_setting, tmp_path)
    assert again is not None
    await again.close()
