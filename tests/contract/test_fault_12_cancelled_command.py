"""Fault 12: a cancelled command on a shared store connection returns another caller's reply.

It has happened with clients that put a connection back while a reply was still on its way to it: each later caller of
that connection then got the reply of the one before. So here callers ask the store for a number of their own and many
give up at a moment of chance; whoever gets an answer must get their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar, cast

import pytest
from sqlalchemy import Connection, literal, select

from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import QUOTA_WINDOWS
from tests.fakes.store_racer import window

CALLERS = 160
LANES = 4
PATIENCE_S = 0.003
"""About what a command takes, so that most who give up do so while theirs is under way."""
T = TypeVar("T")


def own(number: int) -> Callable[[Connection], int]:
    return lambda connection: connection.execute(select(literal(number))).scalar_one()


def written(number: int) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        insert_if_absent(connection, QUOTA_WINDOWS, window(number))
        return own(number)(connection)

    return work


def there(connection: Connection) -> set[int]:
    return set(connection.execute(select(QUOTA_WINDOWS.c.window_start)).scalars())


class MixingUp:
    """A store with the fault: one connection, whose next reply goes to whoever reads next."""

    kind = "broken"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection = asyncio.Lock()
        self._replies: asyncio.Queue[object] = asyncio.Queue()
        self._commands: set[asyncio.Task[None]] = set()

    async def write(self, work: Callable[[Connection], T]) -> T:
        async with self._connection:
            command = asyncio.create_task(self._command(work))
            self._commands.add(command)
            return cast(T, await self._replies.get())

    read = write

    async def _command(self, work: Callable[[Connection], object]) -> None:
        self._replies.put_nowait(await self._store.write(work))

    async def close(self) -> None:
        await asyncio.gather(*self._commands)


@pytest.mark.parametrize("seed", range(3))
async def test_whoever_gets_an_answer_gets_their_own(store: Store, seed: int):
    await ask_and_give_up(store, seed)


async def test_a_store_with_the_fault_is_found_out(store: Store):
    broken = MixingUp(store)
    with pytest.raises(AssertionError, match="another's reply"):
        await ask_and_give_up(broken, seed=0)
    await broken.close()


async def ask_and_give_up(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    answers: dict[int, int] = {}
    loop = asyncio.get_running_loop()

    async def call(number: int) -> None:
        ask = store.write(written(number)) if number % 2 else store.read(own(number))
        answers[number] = await ask

    async def lane(first: int) -> None:
        for number in range(first, CALLERS, LANES):
            task = asyncio.create_task(call(number))
            if number in given_up:
                loop.call_later(rng.uniform(0, PATIENCE_S), task.cancel)
            await asyncio.wait({task})

    given_up = {number for number in range(CALLERS) if rng.random() < 0.6}
    await asyncio.gather(*(lane(first) for first in range(LANES)))

    assert set(range(CALLERS)) - given_up <= answers.keys()
    assert len(answers) < CALLERS, "nobody gave up in time: nothing was tried"
    assert all(number == answer for number, answer in answers.items()), "another's reply"
    for number in range(CALLERS, CALLERS + 20):  # on the very connections that were left in the lurch
        assert await store.read(own(number)) == number
    assert {number for number in answers if number % 2} <= await store.read(there)
