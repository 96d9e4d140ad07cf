"""Brings the tables of a store to the schema of this code; refuses those that a later version has made."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select

_SCRIPTS: Final = Path(__file__).with_name("migrations")
_LOCK: Final = 0x62726F776E6F7574
"""Number of the advisory lock under which gateways that start together migrate one after the other."""


class SchemaError(RuntimeError):
    """The store's tables are not of this version; the text says what to do."""


def upgrade(connection: Connection) -> list[str]:
    """Run the migrations that are missing, in the transaction that ``connection`` is in; return their names.

    The caller holds the lock that keeps others out where the database has none of its own (SQLite).

    Raises:
        SchemaError: the tables were made by a later version.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    there = MigrationContext.configure(connection).get_current_revision()
    if there is not None and there not in known:
        raise SchemaError(
            f"its schema is {there}, and this version of Brownout knows it up to {known[0]} only: a later version "
            "has used it; run that version, or name another database with BROWNOUT_STORE"
        )
    missing = known if there is None else known[: known.index(there)]
    if missing:
        command.upgrade(config, "head")
    return missing[::-1]
