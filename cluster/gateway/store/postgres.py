"""PostgreSQL: a few connections, each with one transaction at a time that belongs to one caller to its end.

A caller that gives up never ends a command half-way: the next command on that connection would read the reply meant for
the one before it. Its transaction ends by itself, or its connection is closed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cluster.gateway.store.failures import Failure, failure_of, without_row, words
from cluster.gateway.store.store import StoreUnavailable

T = TypeVar("T")

CONNECTIONS: Final = 8
"""Transactions at once; more would only wait for each other in the server."""
_CONFLICTS: Final = 5
"""How often work is run again after the server undid it in favour of another's."""
_LONGEST_PAUSE_S: Final = 0.02


def postgres_engine(url: URL, *, answer_s: float, connections: int = CONNECTIONS) -> AsyncEngine:
    """Return an engine whose transactions are on disk when they end, and whose errors hold no parameters."""
    longest_ms = str(int(2000 * answer_s))
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=answer_s,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
        connect_args={
            "timeout": answer_s,
            "server_settings": {
                "application_name": "brownout",
                "synchronous_commit": "on",
                # The locks of a gateway that froze or was cut off must not stop the others.
                "statement_timeout": longest_ms,
                "idle_in_transaction_session_timeout": longest_ms,
            },
        },
    )


@dataclass(slots=True)
class _Progress:
    """How far a transaction has come; ``abandoned`` is set from outside when nobody waits for it any more."""

    committing: bool = False
    abandoned: bool = False


class _Abandoned(Exception):
    pass


class PostgresStore:
    """A server. ``answer_s`` is how long a caller waits for its transaction."""

    kind = "postgresql"

    def __init__(self, url: URL, *, answer_s: float = 5.0, connections: int = CONNECTIONS) -> None:
        self._answer_s = answer_s
        self._engine = postgres_engine(url, answer_s=answer_s, connections=connections)
        self._reading = self._engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._do(self._engine, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._do(self._reading, work)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)  # each ends by itself, or its connection is closed
        await self._engine.dispose()

    async def _do(self, engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StoreUnavailable("the store is closed: the gateway is ending")
        progress = _Progress()
        task = asyncio.create_task(self._transaction(engine, work, progress))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._answer_s):
                return await asyncio.shield(task)
        except TimeoutError:
            progress.abandoned = True  # what has not begun to commit does not commit any more
            maybe_done = progress.committing and engine is self._engine
            raise StoreUnavailable(
                f"the store did not answer within {self._answer_s:g} s", maybe_done=maybe_done
            ) from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # taken note of, also where nobody waits for it

    async def _transaction(
        self, engine: AsyncEngine, work: Callable[[Connection], T], progress: _Progress
    ) -> T:
        """Run ``work`` until its transaction stands, or until there is no more sense in it."""
        conflicts, lost = 0, False
        while True:
            progress.committing = False
            try:
                return await self._once(engine, work, progress)
            except _Abandoned:
                raise StoreUnavailable("nobody waits for this transaction any more") from None
            except (DBAPIError, PoolTimeoutError, OSError, TimeoutError) as error:
                failure = failure_of(error)
                if isinstance(error, DBAPIError) and failure is Failure.OTHER:
                    raise without_row(error) from None
                if failure is Failure.CONFLICT and conflicts < _CONFLICTS:
                    conflicts += 1
                elif failure is Failure.LOST and not lost and not progress.committing:
                    lost = True  # a connection from before the server's restart; the next one is new
                    continue
                else:
                    maybe_done = progress.committing and failure is not Failure.CONFLICT
                    raise StoreUnavailable(
                        f"the store failed: {words(error)}", maybe_done=maybe_done
                    ) from None
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_S * conflicts))

    async def _once(self, engine: AsyncEngine, work: Callable[[Connection], T], progress: _Progress) -> T:
        connection = await engine.connect()
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        # Where the network swallows everything nothing else would ever end this transaction.
        guard = asyncio.get_running_loop().call_later(2 * self._answer_s, driver.terminate)
        try:
            if progress.abandoned:
                raise _Abandoned
            result = await connection.run_sync(work)
            if progress.abandoned:
                raise _Abandoned
            progress.committing = True
            await connection.commit()
            return result
        finally:
            try:
                await connection.close()  # undoes what was not committed
            finally:
                guard.cancel()
