"""Answers that may be given again, in the SQL store: bounded for each tenant, swept when they are past any use.

Nothing depends on it: a store that is slow or away makes misses and refuses nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Row, delete, func, select, update

from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import ANSWERS
from policies.answer_store import AnswersUnavailable, Kept, MemoryAnswers

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_AWAY_S: Final = 1.0
"""How long a store that did not answer is not asked again."""
_STEP: Final = 200
"""Rows that one step of the sweep removes at most, so that it holds up no record that is written meanwhile."""
_SLACK: Final = 16
"""A tenant can have more than its bound by the bound over this, and no more."""
_TENANTS: Final = 1000
_BETWEEN_S: Final = 0.05
"""Between two steps."""
_PENDING: Final = 64
"""Answers that wait to be written at most; further ones are kept in memory only."""


class SqlAnswers:
    """The table. ``most_bytes`` bounds the answers of a tenant, ``limit_s`` the wait for one of them."""

    def __init__(
        self,
        store: Store,
        *,
        most_bytes: int = 64 * 1024 * 1024,
        limit_s: float = 0.25,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._limit_s = limit_s
        self._wall = wall
        self._ahead_s = 0.0
        """By how much the store's clock is ahead of ours."""
        self._away_until = 0.0
        self._unweighed: dict[str, int] = {}
        """Tenant to the bytes that were kept for it since what it has was added up."""

    def now(self) -> float:
        return self._wall() + self._ahead_s

    async def get(self, key: str) -> Kept | None:
        def work(connection: Connection) -> tuple[Row[Any] | None, float]:
            row = connection.execute(select(ANSWERS).where(ANSWERS.c.key == key)).one_or_none()
            return row, store_now(connection)

        row, now = await self._ask(self._store.read(work), self._limit_s)
        self._ahead_s = now - self._wall()
        return None if row is None else _kept(row)

    async def put(self, kept: Kept) -> None:
        weighed = self._to_weigh(kept)

        def work(connection: Connection) -> float:
            row = _row(kept)
            if not insert_if_absent(connection, ANSWERS, row):
                connection.execute(update(ANSWERS).where(ANSWERS.c.key == kept.key).values(row))
            for tenant in weighed:
                _make_room(connection, tenant, self._most_bytes)
            return store_now(connection)

        now = await self._ask(self._store.write(work), None)
        self._ahead_s = now - self._wall()

    async def drop(self, key: str) -> None:
        def work(connection: Connection) -> None:
            connection.execute(delete(ANSWERS).where(ANSWERS.c.key == key))

        await self._ask(self._store.write(work), None)

    async def sweep(self) -> int:
        """Remove some answers that are past any use; return how many, ``_STEP`` where there may be more."""

        def work(connection: Connection) -> int:
            past = select(ANSWERS.c.key).where(ANSWERS.c.stale_until < store_now(connection)).limit(_STEP)
            return connection.execute(delete(ANSWERS).where(ANSWERS.c.key.in_(past))).rowcount

        return await self._ask(self._store.write(work), None)

    def _to_weigh(self, kept: Kept) -> list[str]:
        """Return the tenants whose answers are to be added up now, which takes long where there are many."""
        fresh = self._unweighed
        fresh[kept.tenant] = fresh.get(kept.tenant, 0) + len(kept.body)
        weighed = [kept.tenant] if fresh[kept.tenant] * _SLACK >= self._most_bytes else []
        if len(fresh) > _TENANTS:
            weighed.append(next(iter(fresh)))
        for tenant in weighed:
            fresh.pop(tenant, None)
        return weighed

    async def _ask(self, asked: Coroutine[Any, Any, T], limit_s: float | None) -> T:
        if self._wall() < self._away_until:
            asked.close()
            raise AnswersUnavailable("the store did not answer a moment ago")
        try:
            async with asyncio.timeout(limit_s):
                return await asked
        except (StoreUnavailable, TimeoutError) as error:
            self._away_until = self._wall() + _AWAY_S
            raise AnswersUnavailable(f"the store did not answer: {error}") from error


class BackedAnswers:
    """Memory in front of a table: what is fresh in it is not asked for again, and a new record is written behind it."""

    def __init__(self, far: SqlAnswers, near: MemoryAnswers, *, sweep_every_s: float = 60.0) -> None:
        self._far = far
        self._near = near
        self._sweep_every_s = sweep_every_s
        self._writing: set[asyncio.Task[None]] = set()
        self._sweeper = asyncio.ensure_future(self._sweep())

    def now(self) -> float:
        return self._far.now()

    async def get(self, key: str) -> Kept | None:
        near = self._near.take(key)
        if near is not None and self.now() < near.fresh_until:
            return near
        try:
            far = await self._far.get(key)
        except AnswersUnavailable:
            if near is None:
                raise
            return near
        if far is None:
            return near
        self._near.place(far)
        return far

    async def put(self, kept: Kept) -> None:
        self._near.place(kept)
        if len(self._writing) < _PENDING:
            task = asyncio.ensure_future(self._write(kept))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def drop(self, key: str) -> None:
        self._near.remove(key)
        await self._far.drop(key)

    async def flush(self) -> None:
        """Wait until what was kept is written."""
        while self._writing:
            await asyncio.wait(set(self._writing))

    async def aclose(self) -> None:
        """Write what waits to be written, and end the sweep."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await self.flush()

    async def _write(self, kept: Kept) -> None:
        try:
            await self._far.put(kept)
        except AnswersUnavailable as error:
            _LOG.debug("an answer is kept in memory only: %s", error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_every_s)
            try:
                more = True
                while more:
                    more = await self._far.sweep() == _STEP
                    await asyncio.sleep(_BETWEEN_S)
            except AnswersUnavailable as error:
                _LOG.debug("answers that are past use stay a while longer: %s", error)
            except Exception:
                _LOG.exception("the sweep of answers failed; it is tried again")


def _make_room(connection: Connection, tenant: str, most_bytes: int) -> None:
    """Remove the oldest answers of a tenant until the others fit."""
    of_tenant = ANSWERS.c.tenant == tenant
    size = func.length(ANSWERS.c.body)
    total = connection.execute(select(func.sum(size)).where(of_tenant)).scalar_one() or 0
    if total <= most_bytes:
        return
    gone = []
    oldest = select(ANSWERS.c.key, size).where(of_tenant).order_by(ANSWERS.c.stored_at)
    for key, length in connection.execute(oldest):
        if total <= most_bytes:
            break
        gone.append(key)
        total -= length
    connection.execute(delete(ANSWERS).where(ANSWERS.c.key.in_(gone)))


def _row(kept: Kept) -> dict[str, Any]:
    return {
        "key": kept.key,
        "tenant": kept.tenant,
        "described": kept.described,
        "body": kept.body,
        "body_digest": kept.seal,
        "tokens": kept.tokens,
        "saved_s": kept.saved_s,
        "stored_at": kept.stored_at,
        "fresh_until": kept.fresh_until,
        "stale_until": kept.stale_until,
    }


def _kept(row: Row[Any]) -> Kept:
    return Kept(
        key=row.key,
        tenant=row.tenant,
        described=row.described,
        body=bytes(row.body),
        tokens=row.tokens,
        saved_s=row.saved_s,
        stored_at=row.stored_at,
        fresh_until=row.fresh_until,
        stale_until=row.stale_until,
        seal=row.body_digest,
    )
