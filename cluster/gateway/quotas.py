"""What a tenant may have in a minute, however many gateways it asks: leased to them in blocks from the store.

A gateway takes a block out of the tenant's window, in one statement that cannot take more than there is, and gives
parts of it to calls from its own memory. So no call waits for a row that every call wants, and no number of calls or
gateways gets more than the limit, because what no lease covers is not given. What a gateway leased and did not need is
lost with the window: the price of not asking each time, and never more than a block.

A call reserves what it may use before anything is done for it, and settles with what it did use.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, and_, delete, select, update

from cluster.gateway.errors import InvalidRequest
from cluster.gateway.identity import UNBOUNDED, Identity
from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import QUOTA_WINDOWS
from policies.clock import Clock
from policies.errors import FailedClosed, QuotaExceeded

_LOG = logging.getLogger(__name__)
WINDOW_S: Final = 60
REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
OUTCOMES: Final = ("granted", "empty", "failed")
"""What became of a lease."""
_BLOCKS: Final = 20
"""Parts of a limit in which it is leased: more of them waste less at a window's end, and ask the store more often."""
_KEPT_WINDOWS: Final = 10


@dataclass(frozen=True, slots=True)
class Lease:
    """What the store granted: that much of the window that began at ``window``, at ``now`` by the store's clock."""

    granted: int
    window: int
    now: float


def lease(connection: Connection, tenant: str, quota: str, limit: int, wanted: int) -> Lease:
    """Take up to ``wanted`` out of the window that is open by the store's clock; what is granted may be 0.

    The row is locked from the look at it to its change, so that gateways which ask together are granted one after
    the other.
    """
    now = store_now(connection)
    window = int(now // WINDOW_S) * WINDOW_S
    table = QUOTA_WINDOWS
    mine = and_(table.c.tenant == tenant, table.c.quota == quota)
    row = {"tenant": tenant, "quota": quota, "window_start": window, "leased": 0}
    if insert_if_absent(connection, table, row):
        connection.execute(
            delete(table).where(mine, table.c.window_start < window - _KEPT_WINDOWS * WINDOW_S)
        )
    here = and_(mine, table.c.window_start == window)
    leased = int(connection.execute(select(table.c.leased).where(here).with_for_update()).scalar_one())
    granted = max(0, min(wanted, limit - leased))
    if granted:
        more = table.c.leased + granted
        connection.execute(update(table).where(here, more <= limit).values(leased=more))
    return Lease(granted, window, now)


class _Account:
    """One quota of one tenant, as this gateway has it."""

    def __init__(self) -> None:
        self.window = -1
        self.left = 0
        """Leased and not given out; negative where calls used more than they had reserved."""
        self.dry_under = 0
        """No lease under a limit of this gets anything in this window any more."""
        self.waiting = 0
        self.leasing: asyncio.Task[None] | None = None

    def turn_to(self, window: int) -> None:
        """Go on to a later window; what was leased of the one before is lost with it."""
        if window > self.window:
            self.begin(window)

    def begin(self, window: int) -> None:
        self.window, self.left, self.dry_under = window, min(0, self.left), 0


class Reservation:
    """What is held for one call. It is settled once; later settlements change nothing."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[_Account, int, int]] = {}
        """Quota to its account, the window, and the amount."""

    def _hold(self, quota: str, account: _Account, amount: int) -> None:
        self._held[quota] = account, account.window, amount

    def settle(self, tokens: int) -> None:
        """The call is over and used that many tokens: the rest goes back, or the excess is owed."""
        for quota, (account, window, amount) in self._held.items():
            if quota == TOKENS and account.window == window:
                account.left += amount - tokens
        self._held.clear()

    def release(self) -> None:
        """Nothing was done for the call: it counts for nothing."""
        for account, window, amount in self._held.values():
            if account.window == window:
                account.left += amount
        self._held.clear()


class Quotas:
    """The quotas of all tenants, as one gateway gives them out.

    Args:
        jitter_s: returns seconds by which callers who were refused together come back apart.
        counted: told of each lease, with its quota and one of ``OUTCOMES``.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        jitter_s: Callable[[], float] = lambda: 0.0,
        counted: Callable[[str, str], None] = lambda quota, outcome: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._jitter_s = jitter_s
        self.counted = counted
        self._accounts: dict[tuple[str, str], _Account] = {}
        self._ahead_s: float | None = None
        """What to add to our clock to have the store's."""

    async def reserve(self, identity: Identity, tokens: int, *, requests: int = 1) -> Reservation:
        """Hold a request and that many tokens for a call.

        Raises:
            QuotaExceeded: the tenant has had its share of this minute.
            InvalidRequest: the call alone is more than a minute's share.
            FailedClosed: the store cannot say.
        """
        held, limits = Reservation(), identity.quotas
        if limits.tokens_per_minute is not None and tokens > limits.tokens_per_minute:
            raise InvalidRequest(
                f"the request may take {tokens} tokens, prompt and output together; this tenant has "
                f"{limits.tokens_per_minute} a minute. Shorten the prompt or ask for a shorter answer",
                code="request_exceeds_quota",
            )
        try:
            for quota, limit, amount in (
                (REQUESTS, limits.requests_per_minute, requests),
                (TOKENS, limits.tokens_per_minute, tokens),
            ):
                if limit is not None and amount:
                    held._hold(quota, await self._take(identity.tenant, quota, limit, amount), amount)
        except BaseException:
            held.release()
            raise
        return held

    async def aclose(self) -> None:
        """Let leases that are under way end."""
        running = [one.leasing for one in self._accounts.values() if one.leasing is not None]
        await asyncio.gather(*running, return_exceptions=True)

    async def _take(self, tenant: str, quota: str, limit: int, amount: int) -> _Account:
        account = self._accounts.setdefault((tenant, quota), _Account())
        while True:
            account.turn_to(self._window())
            if account.left >= amount:
                account.left -= amount
                return account
            if limit <= account.dry_under:
                raise self._refusal(tenant, quota, limit)
            account.waiting += amount
            try:
                await self._lease(account, tenant, quota, limit)
            finally:
                account.waiting -= amount

    async def _lease(self, account: _Account, tenant: str, quota: str, limit: int) -> None:
        """Lease a block, or wait for the lease that is under way; who leaves meanwhile does not end it."""
        if account.leasing is None:
            wanted = max(math.ceil(limit / _BLOCKS), account.waiting - account.left)
            account.leasing = asyncio.ensure_future(self._ask(account, tenant, quota, limit, wanted))
            account.leasing.add_done_callback(_look_at)  # whoever waited may have left
        task = account.leasing
        try:
            await asyncio.shield(task)
        except StoreUnavailable:
            raise FailedClosed("the quota cannot be looked up at the moment", what="quota") from None

    async def _ask(self, account: _Account, tenant: str, quota: str, limit: int, wanted: int) -> None:
        asked_at = self._clock.now()
        try:
            got = await self._store.write(lambda connection: lease(connection, tenant, quota, limit, wanted))
        except StoreUnavailable as error:
            self.counted(quota, "failed")
            _LOG.warning("no quota can be leased: %s", error)
            raise
        finally:
            account.leasing = None
        self._ahead_s = got.now - (asked_at + self._clock.now()) / 2
        if account.window != got.window:  # an earlier one too: the store's clock can be set back
            account.begin(got.window)
        account.left += got.granted
        if got.granted < wanted:  # it was all that was left
            account.dry_under = limit
        self.counted(quota, "granted" if got.granted else "empty")

    def _window(self) -> int:
        """Return the start of the window that is open, as far as is known; -1 before the store was ever asked."""
        if self._ahead_s is None:
            return -1
        return int((self._clock.now() + self._ahead_s) // WINDOW_S) * WINDOW_S

    def _refusal(self, tenant: str, quota: str, limit: int) -> QuotaExceeded:
        now = self._clock.now() + (self._ahead_s or 0.0)
        after_s = WINDOW_S - now % WINDOW_S + self._jitter_s()
        return QuotaExceeded(
            f"tenant {tenant!r} has used its {limit} {quota} of this minute; come back in {after_s:.0f} s",
            retry_after_s=after_s,
        )


async def reserve(
    quotas: Quotas | None, identity: Identity, tokens: int, *, requests: int = 1
) -> Reservation:
    """Hold a call's share of the quotas of its tenant; where that has none there is nothing to hold.

    Raises:
        QuotaExceeded: the tenant has had its share of this minute.
        InvalidRequest: the call alone is more than a minute's share.
        FailedClosed: the store cannot say, or there is no store.
    """
    if identity.quotas == UNBOUNDED:
        return Reservation()
    if quotas is None:
        raise FailedClosed("this tenant has quotas, and there is no store to keep them in", what="quota")
    return await quotas.reserve(identity, tokens, requests=requests)


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
