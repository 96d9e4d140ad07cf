"""What every store does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, func, select

from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import QUOTA_WINDOWS


def add(number: int):
    def work(connection: Connection) -> bool:
        row = {"tenant": "t", "quota": "q", "window_start": number, "leased": 0}
        return insert_if_absent(connection, QUOTA_WINDOWS, row)

    return work


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(QUOTA_WINDOWS)).scalar_one()


async def test_what_was_written_is_read(store: Store):
    assert await store.write(add(1))
    assert not await store.write(add(1))
    assert await store.read(count) == 1


async def test_what_raises_leaves_nothing(store: Store):
    def work(connection: Connection) -> None:
        add(1)(connection)
        raise KeyError("no")

    with pytest.raises(KeyError):
        await store.write(work)
    assert await store.read(count) == 0
