"""Quotas on both stores: several gateways, each with connections of its own, never give out more than the limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import select

from cluster.gateway import quotas as module
from cluster.gateway.identity import Identity, QuotaLimits
from cluster.gateway.quotas import Quotas
from cluster.gateway.store.opening import open_store
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import QUOTA_WINDOWS
from policies.errors import QuotaExceeded
from tests.fakes.policy_bench import FixedClock

GATEWAYS = 4
AT = 1_000_020.0


@pytest.mark.parametrize(("limit", "each"), [(100, 1), (7, 1), (10_000, 300)])
async def test_gateways_on_stores_of_their_own_together_give_no_more_than_the_limit(
    store: Store, store_setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, each: int
) -> None:
    monkeypatch.setattr(module, "store_now", lambda connection: AT)
    stores = [opened for _ in range(GATEWAYS) if (opened := await open_store(store_setting, tmp_path))]
    gateways = [Quotas(opened, FixedClock()) for opened in stores]
    who = Identity("acme", "web", "k", quotas=QuotaLimits(tokens_per_minute=limit))

    async def granted(number: int) -> int:
        try:
            await gateways[number % GATEWAYS].reserve(who, each)
        except QuotaExceeded:
            return 0
        return each

    try:
        given = sum(await asyncio.gather(*(granted(n) for n in range(400))))
    finally:
        for opened in stores:
            await opened.close()
    leased = await store.read(
        lambda connection: list(connection.execute(select(QUOTA_WINDOWS.c.leased)).scalars())
    )
    assert leased == [limit], "all of it was leased, and to nobody twice"
    assert given <= limit
    assert given >= limit - GATEWAYS * max(each, limit // 20 + 1), "little is lost in blocks"
