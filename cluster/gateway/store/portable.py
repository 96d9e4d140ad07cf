"""The few things that SQLite and PostgreSQL do not say in the same words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_absent(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key is there; tell whether it was inserted. Atomic between gateways."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(**values).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount)


def store_now(connection: Connection) -> float:
    """Return the time by the store's clock, so that gateways whose clocks differ agree on leases."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
    return time.time()
