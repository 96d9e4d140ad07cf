"""Gateway, tool and store are killed at random moments under traffic, and each key ends with one effect and one answer.

Each kill of a gateway cuts many requests at once, each wherever it is; the seed says when.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from tests.fakes.crash_check import check, replayed_alike, session
from tests.fakes.crash_stand import crash_stand
from tests.fakes.postgres import Postgres
from tests.fakes.retrying import Final, Payment

CLIENTS = 60
SEED = 11


class Traffic:
    """Clients that pay one after the other, without pause, until they are told to stop."""

    def __init__(self, http: aiohttp.ClientSession, urls: Sequence[str]) -> None:
        self.answers: list[tuple[Payment, Final]] = []
        self.payments: list[Payment] = []
        self._http = http
        self._urls = urls
        self._stopping = False
        self._clients = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]

    @property
    def cut(self) -> int:
        """Return how many sendings were cut off by a death."""
        return sum(payment.cut for payment in self.payments)

    async def until(self, answered: int) -> None:
        """Wait until that many more have been answered."""
        wanted = len(self.answers) + answered
        async with asyncio.timeout(90):
            while len(self.answers) < wanted:
                for client in self._clients:
                    if client.done():
                        client.result()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """Let every client get its last answer."""
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._clients), 120)

    async def _client(self, number: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            payment = Payment(f"client-{number}-{turn}", stream=turn % 2 == 0, after=(number + turn) % 3 == 0)
            self.payments.append(payment)
            urls = self._urls[number % len(self._urls) :] + self._urls[: number % len(self._urls)]
            self.answers.append((payment, await payment.until_final(self._http, *urls)))


async def test_three_hundred_requests_are_cut_by_kills_of_gateway_and_tool(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with crash_stand(store, tmp_path) as stand, session() as http:
        gateway = stand.gateway()
        await gateway.start()
        traffic = Traffic(http, [gateway.url])
        kills = 0
        while traffic.cut < 300:
            await traffic.until(answered=rng.randrange(1, 25))
            await asyncio.sleep(rng.uniform(0, 0.1))
            victim = stand.tool if kills % 4 == 2 else gateway
            await victim.kill()
            await victim.start()
            kills += 1
        await traffic.end()
        await replayed_alike(http, rng.sample(traffic.answers, 30), gateway.url)
        unknown = await check(stand, traffic.answers, tmp_path)
        print(
            f"{kills} kills cut {traffic.cut} requests; {len(traffic.answers)} answered, {unknown} left open"
        )


async def test_two_gateways_the_tool_and_the_store_die_in_turn(
    tmp_path: Path, postgres: Postgres, postgres_url: str
) -> None:
    rng = random.Random(SEED)
    async with crash_stand(postgres_url, tmp_path) as stand, session() as http:
        gateways = [stand.gateway(), stand.gateway()]
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        urls = [gateway.url for gateway in gateways]
        traffic = Traffic(http, urls)
        for turn in range(6):
            await traffic.until(answered=rng.randrange(1, 25))
            await asyncio.sleep(rng.uniform(0, 0.1))
            if turn in (2, 5):
                await asyncio.to_thread(postgres.kill)
                await asyncio.to_thread(postgres.start)
            else:
                victim = stand.tool if turn % 4 == 3 else gateways[turn % 2]
                await victim.kill()
                await victim.start()
        await traffic.end()
        await replayed_alike(http, rng.sample(traffic.answers, 20), *urls)
        unknown = await check(stand, traffic.answers, tmp_path)
        print(f"{traffic.cut} requests cut, {len(traffic.answers)} answered, {unknown} left open")
