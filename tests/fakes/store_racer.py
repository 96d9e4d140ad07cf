"""A process beside others on one store: ``python -m tests.fakes.store_racer SETTING RACE COUNT SEED RACERS``.

Opens the store (all begin at once: the tables may not be there yet), runs one race ``COUNT`` times in an order by the
seed, and prints what it got, as a JSON list.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, func, select

from cluster.gateway.store.opening import open_store
from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.tables import QUOTA_WINDOWS


def window(number: int) -> dict[str, Any]:
    return {"tenant": "t", "quota": "q", "window_start": number, "leased": 0}


def claim(number: int) -> Callable[[Connection], int | None]:
    """Insert row ``number``; give its number if it was this call that inserted it."""

    def work(connection: Connection) -> int | None:
        return number if insert_if_absent(connection, QUOTA_WINDOWS, window(number)) else None

    return work


def lease(_: int) -> Callable[[Connection], int | None]:
    """Take the next ticket of row 0, which begins with none; give its number."""

    def work(connection: Connection) -> int | None:
        insert_if_absent(connection, QUOTA_WINDOWS, window(0))
        row = QUOTA_WINDOWS.c.window_start == 0
        taken = QUOTA_WINDOWS.update().where(row).values(leased=QUOTA_WINDOWS.c.leased + 1)
        return connection.execute(taken.returning(QUOTA_WINDOWS.c.leased)).scalar_one()

    return work


LANES: Final = 3
"""Transactions that a process asks for at once."""
RACES: Final = {"claim": claim, "lease": lease}


def present(connection: Connection) -> int:
    """Count the racers that have got as far as this."""
    rows = select(func.count()).where(QUOTA_WINDOWS.c.window_start < 0)
    return connection.execute(rows).scalar_one()


async def main(setting: str, race: str, count: int, seed: int, racers: int) -> None:
    store = await open_store(setting, Path("/nowhere"))
    assert store is not None
    await store.write(claim(-1 - seed))
    async with asyncio.timeout(60):
        while await store.read(present) < racers:  # noqa: ASYNC110 (they are other processes)
            await asyncio.sleep(0.001)
    order = random.Random(seed).sample(range(count), count)
    got = []

    async def run(numbers: list[int]) -> None:
        for number in numbers:
            if (one := await store.write(RACES[race](number))) is not None:
                got.append(one)

    await asyncio.gather(*(run(order[lane::LANES]) for lane in range(LANES)))
    await store.close()
    print(json.dumps(got))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
