"""Opens the store that the setting names, with its tables brought up to date."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Final, NoReturn

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from cluster import public
from cluster.gateway.store.address import StoreAddress, parse_address
from cluster.gateway.store.failures import Failure, failure_of, never_mends, words
from cluster.gateway.store.postgres import PostgresStore, postgres_engine
from cluster.gateway.store.schema import SchemaError, upgrade
from cluster.gateway.store.sqlite import SqliteStore, sqlite_engine
from cluster.gateway.store.store import Store

_log = logging.getLogger(__name__)

WAIT_S: Final = 60.0
"""How long a gateway that starts waits for its store: in containers both start together."""
_PAUSE_S: Final = 0.5
_TELL_EVERY_S: Final = 5.0


class StoreOpenError(RuntimeError):
    """The store cannot be opened; the text names BROWNOUT_STORE, says why and what to do."""


async def open_store(
    setting: str, run_dir: Path, *, answer_s: float = 5.0, wait_s: float = WAIT_S
) -> Store | None:
    """Return the open store, migrated to this version's schema; None for the setting ``none``.

    Args:
        setting: as :func:`~cluster.gateway.store.address.parse_address` takes it.
        answer_s: how long a caller waits for a transaction.
        wait_s: how long a PostgreSQL that does not answer yet is waited for.

    Raises:
        StoreOpenError: it cannot be opened.
    """
    try:
        address = parse_address(setting, run_dir)
    except ValueError as error:
        raise StoreOpenError(f"BROWNOUT_STORE: {error}") from None
    if address.kind == "none":
        return None
    if address.path is not None:
        try:
            if setting == "sqlite":
                public.claim_run_dir(run_dir)  # in a folder that somebody else made they could read it
            await asyncio.to_thread(_migrate_file, address.path, wait_s)
        except (DBAPIError, OSError, SchemaError) as error:
            _fail(address, error)
        return SqliteStore(address.path, answer_s=answer_s)
    await _migrate_server(address, answer_s, wait_s)
    return PostgresStore(make_url(address.url), answer_s=answer_s)


def _fail(address: StoreAddress, error: Exception) -> NoReturn:
    raise StoreOpenError(
        f"BROWNOUT_STORE: the store {address} cannot be opened: {words(error)}{_mend(address)}"
    ) from None


def _mend(address: StoreAddress) -> str:
    if address.path is not None:
        return (
            f"; see that {address.path} is a database of Brownout that this user may write, or move it away"
        )
    return "; see that the server runs, and that user, password and database are right"


def _migrate_file(path: Path, wait_s: float) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_name(path.name + ".lock")
    engine = sqlite_engine(path)
    try:
        with open(os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600), "w") as handle:
            _take(handle.fileno(), lock, wait_s)
            path.touch(mode=0o600)  # prompts and answers are in it
            with engine.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                _tell(StoreAddress("sqlite", path), upgrade(connection))
                connection.commit()
    finally:
        engine.dispose()


def _take(handle: int, lock: Path, wait_s: float) -> None:
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise OSError(f"another process has held {lock} for {wait_s:g} s") from None
            time.sleep(0.05)
        else:
            return


async def _migrate_server(address: StoreAddress, answer_s: float, wait_s: float) -> None:
    began = told = time.monotonic()
    while True:
        engine = postgres_engine(make_url(address.url), answer_s=answer_s, connections=1)
        try:
            async with engine.begin() as connection:
                done = await connection.run_sync(upgrade)
        except SchemaError as error:
            _fail(address, error)
        except (DBAPIError, PoolTimeoutError, OSError) as error:
            now = time.monotonic()
            if failure_of(error) is Failure.OTHER or never_mends(error) or now - began > wait_s:
                _fail(address, error)
            if told == began or now - told > _TELL_EVERY_S:
                told = now
                left = wait_s - (now - began)
                _log.warning("waiting for the store %s, %.0f s more: %s", address, left, words(error))
        else:
            _tell(address, done)
            return
        finally:
            await engine.dispose()
        await asyncio.sleep(_PAUSE_S)


def _tell(address: StoreAddress, migrations: list[str]) -> None:
    if migrations:
        _log.info("store %s: brought up to date with %s", address, ", ".join(migrations))
