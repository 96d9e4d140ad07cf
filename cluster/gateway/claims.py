"""Claims on idempotency keys, in the store: taken in one step, kept alive together, recorded under their fence."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, Delete, Update, delete, select, tuple_, update

from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import CLAIMS, TOOL_STEPS
from policies.idempotency import (
    Claimed,
    ClaimLost,
    Entry,
    InFlight,
    Keyed,
    Outcome,
    Recorded,
    State,
    decide,
)

_LOG = logging.getLogger(__name__)
_TOGETHER: Final = 200
"""Leases renewed, and expired rows removed, by one statement."""
_SWEEP_EVERY_S: Final = 60.0
_BETWEEN_S: Final = 0.05
"""Between two steps of a sweep."""
_CROWDED: Final = InFlight(0.1)
"""What is told after a claim has been lost to others several times within one transaction."""


class _Held:
    """A claim while it is worked on; ``sure_until`` is the instant up to which nobody else can have it."""

    __slots__ = ("_scope", "sure_until")

    def __init__(self, sure_until: float) -> None:
        self.sure_until = sure_until
        self._scope: asyncio.Timeout | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        scope = self._scope = asyncio.timeout_at(self.sure_until)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise ClaimLost("the claim on the key was lost: its lease could not be renewed in time") from None
        finally:
            self._scope = None

    def until(self, instant: float) -> None:
        """Move the end; one that has passed ends what is done at once."""
        self.sure_until = instant
        self._move(instant)

    def recorded(self) -> None:
        """The answer stands: who reads it may take as long as they like."""
        self._move(None)

    def _move(self, instant: float | None) -> None:
        if self._scope is not None and not self._scope.expired():
            with suppress(RuntimeError):  # it is being left at this moment
                self._scope.reschedule(instant)


class Claims:
    """The claims of one gateway.

    Args:
        owner: names this gateway process in the table.
        lease_s: for how long a key stays blocked after its holder has crashed.
        keep_s: for how long an answer can be replayed.
    """

    def __init__(self, store: Store, owner: str, *, lease_s: float = 6.0, keep_s: float = 86_400.0) -> None:
        self._store = store
        self._owner = owner
        self.lease_s = lease_s
        self.keep_s = keep_s
        self._held: dict[Claimed, _Held] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._outage_told = False

    async def claim(self, keyed: Keyed) -> Outcome:
        """Take the key for a request, or find out why not.

        Raises:
            StoreUnavailable: nobody can tell; the request must not be worked on.
        """
        asked_at = asyncio.get_running_loop().time()
        taking = asyncio.ensure_future(self._store.write(lambda connection: self._claim(connection, keyed)))
        try:
            outcome = await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._taken_for_nobody)
            raise
        self._outage_told = False
        if isinstance(outcome, Claimed):
            self._held[outcome] = _Held(asked_at + self.lease_s)
            if not self._tasks:
                self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._tidy())]
        return outcome

    @asynccontextmanager
    async def working(self, claim: Claimed) -> AsyncIterator[None]:
        """A context that ends what is done in it as soon as the claim may be another's.

        Raises:
            ClaimLost: it ended for that reason.
        """
        held = self._held.get(claim)
        if held is None:
            raise ClaimLost("the claim has ended")
        async with held.working():
            yield

    async def renew(self, held: Claimed) -> bool:
        """Lengthen one lease; False when the claim is another's by now."""
        return held not in await self._renew([held])

    async def finish(self, held: Claimed, recorded: Recorded) -> bool:
        """Record the answer; False when the claim is another's by now, and then nothing is recorded.

        Raises:
            StoreUnavailable: nobody can tell.
        """
        values = {
            "state": State.DONE.value,
            "status": recorded.status,
            "headers": json.dumps(dict(recorded.headers)),
            "body": recorded.body,
        }
        statement = update(CLAIMS).where(*_own(held)).values(**values)
        one = self._held.pop(held, None)
        stands = await self._store.write(lambda connection: bool(connection.execute(statement).rowcount))
        if stands and one is not None:
            one.recorded()
        return stands

    async def release(self, held: Claimed, *, acted: bool) -> None:
        """Give the claim back without an answer; ``acted``: something may have been done under it."""
        self._held.pop(held, None)
        mine = _own(held)
        change: Update | Delete = delete(CLAIMS).where(*mine)
        if acted or held.again:
            change = update(CLAIMS).where(*mine).values(state=State.UNKNOWN.value, lease_until=0.0)
        await self._store.write(lambda connection: connection.execute(change).rowcount)

    def release_soon(self, held: Claimed, *, acted: bool) -> None:
        """Give the claim back, for a caller who cannot wait. If it fails, the lease runs out by itself."""
        self._held.pop(held, None)
        task = asyncio.ensure_future(self.release(held, acted=acted))
        self._leaving.add(task)
        task.add_done_callback(self._left)

    async def sweep(self) -> int:
        """Remove some of what has expired; return how many rows that were."""
        return await self._store.write(_sweep)

    async def aclose(self) -> None:
        """Give back what still can be, and stop renewing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)

    def _taken_for_nobody(self, taking: asyncio.Future[Outcome]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            outcome = taking.result()
            if isinstance(outcome, Claimed):
                self.release_soon(outcome, acted=False)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._outage_told = False
        elif not isinstance(error, StoreUnavailable):
            _LOG.error("a claim could not be given back, its lease will run out", exc_info=error)
        elif not self._outage_told:
            self._outage_told = True
            _LOG.warning(
                "claims cannot be given back while the store is away, their leases run out: %s", error
            )

    def _claim(self, connection: Connection, keyed: Keyed) -> Outcome:
        now = store_now(connection)
        entry: Entry | None = None
        for _ in range(4):
            outcome = decide(entry, keyed, now)
            if not isinstance(outcome, Claimed):
                return outcome
            values = self._values(keyed, outcome, now)
            if entry is None:
                taken = insert_if_absent(connection, CLAIMS, {"scope": keyed.scope, **values})
            else:
                if outcome.again:
                    del values["expires_at"]
                mine = (CLAIMS.c.scope == keyed.scope, CLAIMS.c.fence == entry.fence)
                same = CLAIMS.c.state == entry.state.value
                taken = bool(connection.execute(update(CLAIMS).where(*mine, same).values(**values)).rowcount)
            if taken:
                return outcome
            entry = _read(connection, keyed.scope)
        return _CROWDED

    def _values(self, keyed: Keyed, claim: Claimed, now: float) -> dict[str, Any]:
        return {
            "tenant": keyed.tenant,
            "principal": keyed.principal,
            "body_digest": keyed.body_digest,
            "state": State.RUNNING.value,
            "owner": self._owner,
            "fence": claim.fence,
            "lease_until": now + self.lease_s,
            "expires_at": now + self.keep_s,
            "request_id": keyed.request_id,
            "status": None,
            "headers": None,
            "body": None,
        }

    async def _keep(self) -> None:
        """Renew the leases of all that is worked on, together."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            all_held = list(self._held)
            for start in range(0, len(all_held), _TOGETHER):
                some = all_held[start : start + _TOGETHER]
                try:
                    for lost in await self._renew(some):
                        self._lose(lost)
                except StoreUnavailable:
                    pass  # the scopes end by themselves when this goes on
                except Exception:
                    _LOG.exception("leases of claims could not be renewed; it is tried again")

    async def _tidy(self) -> None:
        """Now and then remove all that has expired, in steps that hold up nobody's claim."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            try:
                more = True
                while more:
                    more = await self.sweep() > 0
                    await asyncio.sleep(_BETWEEN_S)
            except StoreUnavailable as error:
                _LOG.debug("what has expired stays a while longer: %s", error)
            except Exception:
                _LOG.exception("the sweep of claims failed; it is tried again")

    async def _renew(self, claims: Sequence[Claimed]) -> set[Claimed]:
        """Lengthen leases; return those that are another's by now."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        ours = tuple_(CLAIMS.c.scope, CLAIMS.c.fence).in_([(one.scope, one.fence) for one in claims])

        def work(connection: Connection) -> set[str]:
            until = store_now(connection) + self.lease_s
            statement = update(CLAIMS).where(ours, CLAIMS.c.state == State.RUNNING.value)
            done = connection.execute(statement.values(lease_until=until).returning(CLAIMS.c.scope))
            return set(done.scalars())

        renewed = await self._store.write(work)
        for one in claims:
            held = self._held.get(one)
            if held is not None and one.scope in renewed:
                held.until(asked_at + self.lease_s)
        return {one for one in claims if one.scope not in renewed}

    def _lose(self, claim: Claimed) -> None:
        held = self._held.pop(claim, None)
        if held is not None:
            held.until(asyncio.get_running_loop().time())


def new_owner() -> str:
    """Return a name for this process that no other has had."""
    return f"{socket.gethostname()[:24]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def still_held(connection: Connection, claim: Claimed) -> bool:
    """Tell whether the claim is held, and keep it from being taken over until the transaction has ended."""
    own = select(CLAIMS.c.fence).where(*_own(claim)).with_for_update()
    return connection.execute(own).one_or_none() is not None


def _own(held: Claimed) -> tuple[Any, ...]:
    return (
        CLAIMS.c.scope == held.scope,
        CLAIMS.c.fence == held.fence,
        CLAIMS.c.state == State.RUNNING.value,
    )


def _read(connection: Connection, scope: str) -> Entry | None:
    row = connection.execute(select(CLAIMS).where(CLAIMS.c.scope == scope)).one_or_none()
    if row is None:
        return None
    recorded = None
    if row.state == State.DONE.value:
        recorded = Recorded(row.status, json.loads(row.headers), bytes(row.body))
    return Entry(row.body_digest, State(row.state), row.fence, row.lease_until, row.expires_at, recorded)


def _sweep(connection: Connection) -> int:
    now, removed = store_now(connection), 0
    for table, key in ((CLAIMS, CLAIMS.c.scope), (TOOL_STEPS, TOOL_STEPS.c.scope)):
        some = select(key).where(table.c.expires_at < now).limit(_TOGETHER)
        old = delete(table).where(key.in_(some), table.c.expires_at < now)
        removed += connection.execute(old).rowcount
    return removed
