"""What an attempt could not write before it was given up goes out before what the next one writes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cluster.gateway.answering import Answering


class SlowClient:
    """An exchange whose client reads only when it is let."""

    def __init__(self) -> None:
        self.started = False
        self.before_end = None
        self.reads = asyncio.Event()
        self.got = b""

    async def start_stream(self) -> None:
        await self.reads.wait()
        self.started = True

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        self.got += data


def answering(client: SlowClient) -> Answering:
    made: Any = object.__new__(Answering)
    made.exchange, made._unsent = client, b""
    made._phase = SimpleNamespace(of=lambda when: ())
    return made  # type: ignore[no-any-return]


async def give_up(work: Any) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_is_lost_and_nothing_comes_twice() -> None:
    client = SlowClient()
    receiver = answering(client)
    await give_up(receiver.write(b"one "))
    assert client.got == b""
    await give_up(receiver.write(b"two "))
    client.reads.set()
    await receiver.write(b"three ")
    assert client.got == b"one two three "
    client.reads.clear()
    await give_up(receiver.write(b"four "))
    client.reads.set()
    await receiver.write(b"five")
    assert client.got == b"one two three four five"
