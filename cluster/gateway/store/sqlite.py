"""SQLite: one thread that writes, one that reads, and pieces of work that share a flush to disk.

SQLAlchemy's asynchronous SQLite driver hops to a thread and back for every statement, which made a request's records
cost the gateway several times what they cost SQLite. Here a whole transaction, and all that waits beside it, is one
hop; the statements are the same Core expressions that PostgreSQL gets.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import NullPool

from cluster.gateway.store.failures import words
from cluster.gateway.store.store import StoreUnavailable

T = TypeVar("T")

GROUP: Final = 64
"""Pieces of work that share a flush at most, so that the first of them does not wait for ever."""
_LOCK_WAIT_S: Final = 2.0
"""How long SQLite waits for other processes' transactions: it asks now and then, and they may be quicker.
Less than callers wait for an answer: who cannot be recorded is told so, and does not hang as long as a lock is held."""


def sqlite_engine(path: Path) -> Engine:
    """Return an engine for a file that exists, whose transactions are on disk when they end."""
    place = f"{path.absolute().as_uri()}?mode=rw"  # a file that was removed is not made anew, without tables

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(place, uri=True, check_same_thread=False)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, record: object) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver thinks
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * _LOCK_WAIT_S)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


@dataclass(slots=True)
class _Piece:
    work: Callable[[Connection], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class SqliteStore:
    """A file. ``answer_s`` is how long a caller waits for its transaction."""

    kind = "sqlite"

    def __init__(self, path: Path, *, answer_s: float = 5.0) -> None:
        self._path = path
        self._answer_s = answer_s
        self._engine = sqlite_engine(path)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._writer = _Thread(self._engine, path, "BEGIN IMMEDIATE", GROUP, self._loop)
        self._reader = _Thread(self._engine, path, "BEGIN", 1, self._loop)

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._do(self._writer, work, maybe_done=True)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._do(self._reader, work, maybe_done=False)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for thread in (self._writer, self._reader):
            await asyncio.to_thread(thread.close)
        self._engine.dispose()

    async def _do(self, thread: _Thread, work: Callable[[Connection], T], *, maybe_done: bool) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed: the gateway is ending")
        future: asyncio.Future[T] = self._loop.create_future()
        thread.put(_Piece(work, future))
        try:
            async with asyncio.timeout(self._answer_s):
                return await asyncio.shield(future)
        except TimeoutError:
            future.add_done_callback(_look_at)
            raise StoreUnavailable(
                f"the store did not answer within {self._answer_s:g} s", maybe_done=maybe_done
            ) from None
        except asyncio.CancelledError:
            future.add_done_callback(_look_at)
            raise


def _look_at(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


class _Thread:
    """Does pieces of work one group after the other, on a connection of its own."""

    def __init__(
        self, engine: Engine, path: Path, begin: str, group: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._engine = engine
        self._path = path
        self._file: tuple[int, int] | None = None
        self._begin = begin
        self._group = group
        self._loop = loop
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def put(self, piece: _Piece) -> None:
        self._pieces.put(piece)

    def close(self) -> None:
        """Let what was put before end, then end the thread."""
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        more = True
        while more:
            first = self._pieces.get()
            pieces = [] if first is None else [first]
            more = first is not None
            while more and len(pieces) < self._group and not self._pieces.empty():
                piece = self._pieces.get()
                if piece is None:
                    more = False
                else:
                    pieces.append(piece)
            if pieces:
                connection = self._together(connection, pieces)
                self._tell(pieces)
        if connection is not None:
            connection.close()

    def _together(self, connection: Connection | None, pieces: list[_Piece]) -> Connection | None:
        """Do the pieces in one transaction; return the connection, or None when it must not be used again."""
        try:
            if connection is None:
                connection = self._engine.connect()
                self._file = _identity(self._path)
            connection.exec_driver_sql(self._begin)
            for number, piece in enumerate(pieces):
                self._one(connection, piece, f"piece_{number}" if len(pieces) > 1 else "")
            if (
                _identity(self._path) != self._file
            ):  # SQLite would write on, into a file that nobody finds again
                raise OSError(f"{self._path} was removed or replaced while it was in use")
            if len(pieces) == 1 and pieces[0].error is not None:
                connection.exec_driver_sql("ROLLBACK")
            else:
                connection.exec_driver_sql("COMMIT")
            connection.rollback()  # ends SQLAlchemy's own idea of a transaction
        except Exception as error:
            for piece in pieces:
                piece.error = StoreUnavailable(f"the store failed: {words(error)}")
            if connection is not None:
                self._give_up(connection)
            return None
        return connection

    def _one(self, connection: Connection, piece: _Piece, savepoint: str) -> None:
        """Do one piece; an error undoes it and leaves the others as they are."""
        if savepoint:
            connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
        try:
            piece.result = piece.work(connection)
        except Exception as error:
            if isinstance(error, OperationalError) or type(error) is DatabaseError:
                raise  # the disk is full, the file is damaged: the whole group fails
            piece.error = error
            if savepoint:
                connection.exec_driver_sql(f"ROLLBACK TO {savepoint}")
        if savepoint:
            connection.exec_driver_sql(f"RELEASE {savepoint}")

    @staticmethod
    def _give_up(connection: Connection) -> None:
        try:
            connection.exec_driver_sql("ROLLBACK")
        except Exception:
            connection.invalidate()
        connection.close()

    def _tell(self, pieces: list[_Piece]) -> None:
        try:
            self._loop.call_soon_threadsafe(_tell, pieces)
        except RuntimeError:  # the loop has ended: so have those who waited
            return


def _tell(pieces: list[_Piece]) -> None:
    for piece in pieces:
        if piece.future.done():
            continue
        if piece.error is not None:
            piece.future.set_exception(piece.error)
        else:
            piece.future.set_result(piece.result)


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
