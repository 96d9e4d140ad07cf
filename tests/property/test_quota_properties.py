"""Whatever gateways do with a quota, and in whatever order, a minute never gives out more than its limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from cluster.gateway import quotas as module
from cluster.gateway.identity import Identity, QuotaLimits
from cluster.gateway.quotas import WINDOW_S, Quotas, Reservation
from cluster.gateway.store.tables import METADATA, QUOTA_WINDOWS
from policies.errors import QuotaExceeded
from tests.fakes.policy_bench import FixedClock

T = TypeVar("T")
START = 1_000_020.0


class Memory:
    """A store in memory; work is done at once, between two steps of the loop."""

    kind = "sqlite"

    def __init__(self) -> None:
        self._engine = create_engine("sqlite://", poolclass=StaticPool)
        METADATA.create_all(self._engine, tables=[QUOTA_WINDOWS])

    async def write(self, work: Callable[[Connection], T]) -> T:
        await asyncio.sleep(0)
        with self._engine.begin() as connection:
            result = work(connection)
        await asyncio.sleep(0)
        return result

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self.write(work)

    async def close(self) -> None:
        self._engine.dispose()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 2), st.integers(1, 30), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 30), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.floats(0, 40), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(30, 200))
def test_no_window_gives_more_than_the_limit(plan: list[tuple], limit: int) -> None:  # type: ignore[type-arg]
    clock = FixedClock()

    async def main() -> None:
        store = Memory()
        gateways = [Quotas(store, clock) for _ in range(3)]
        who = Identity("t", "p", "k", quotas=QuotaLimits(tokens_per_minute=limit))
        held: list[tuple[Reservation, int, int]] = []
        used: Counter[int] = Counter()
        waits: list[float] = []

        def window() -> int:
            return int((START + clock.at) // WINDOW_S)

        async def take(gateway: Quotas, amount: int) -> None:
            try:
                held.append((await gateway.reserve(who, amount), amount, window()))
            except QuotaExceeded as error:
                waits.append(error.retry_after_s)

        for what, first, second, times in plan:
            if what == "reserve":
                await asyncio.gather(*(take(gateways[(first + n) % 3], second) for n in range(times)))
            elif what == "wait":
                clock.at += first
            elif held:
                one, amount, at = held.pop(first % len(held))
                if what == "release":
                    one.release()
                else:
                    spent = int(amount * second)
                    one.settle(spent)
                    used[at] += spent
            standing = Counter(used)
            for _, amount, at in held:
                standing[at] += amount
            assert all(total <= limit for total in standing.values()), standing
        assert all(0 < wait_s <= WINDOW_S for wait_s in waits), "it ends with the minute"
        await store.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "store_now", lambda connection: START + clock.at)
        asyncio.run(main())
