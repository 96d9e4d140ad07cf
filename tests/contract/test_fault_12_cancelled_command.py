"""Fault 12: a cancelled command on a shared store connection returns another caller's reply.

It has happened with clients that put a connection back while a reply was still on its way to it: each later caller of
that connection then got the reply of the one before. So here callers ask the store for a number of their own and many
give up at a moment of chance; whoever gets an answer must get their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, literal, select

from cluster.gateway.store.portable import insert_if_absent
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import QUOTA_WINDOWS
from tests.fakes.store_racer import window

CALLERS = 150


def own(number: int) -> Callable[[Connection], int]:
    return lambda connection: connection.execute(select(literal(number))).scalar_one()


def written(number: int) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        insert_if_absent(connection, QUOTA_WINDOWS, window(number))
        return own(number)(connection)

    return work


def there(connection: Connection) -> set[int]:
    return set(connection.execute(select(QUOTA_WINDOWS.c.window_start)).scalars())


@pytest.mark.parametrize("seed", range(3))
async def test_whoever_gets_an_answer_gets_their_own(store: Store, seed: int):
    rng = random.Random(seed)
    answers: dict[int, int] = {}
    loop = asyncio.get_running_loop()

    async def call(number: int) -> None:
        ask = store.write(written(number)) if number % 2 else store.read(own(number))
        answers[number] = await ask

    tasks = [asyncio.create_task(call(number)) for number in range(CALLERS)]
    given_up = [number for number in range(CALLERS) if rng.random() < 0.6]
    for number in given_up:
        loop.call_later(rng.uniform(0, 0.1), tasks[number].cancel)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert set(range(CALLERS)) - set(given_up) <= answers.keys()
    assert len(answers) < CALLERS, "nobody gave up in time: nothing was tried"
    assert all(number == answer for number, answer in answers.items())
    for number in range(CALLERS, CALLERS + 20):  # on the very connections that were left in the lurch
        assert await store.read(own(number)) == number
    assert {number for number in answers if number % 2} <= await store.read(there)
