"""A client that leaves, at each stage of a call: the upstream connection closes at once and nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour
from tests.fakes.tool import FakeTool, fake_tool

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 500}


@pytest.fixture(params=["naive", "resilient"])
async def made(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    waits = {
        "header_timeout_s": 30.0,
        "first_token_timeout_s": 30.0,
        "stall_timeout_s": 30.0,
        "tool_deadline_s": 30.0,
    }
    async with rig(2, profile=request.param, **waits) as built:
        yield built


class Client:
    """A raw connection with one request on it, which can be dropped at any moment."""

    def __init__(self, made: Rig, body: dict[str, Any]) -> None:
        self._made = made
        self._body = json.dumps(body).encode()

    async def __aenter__(self) -> Client:
        host, port = self._made.url.removeprefix("http://").split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        self._reader, self._writer = await asyncio.open_connection(sock=sock)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(self._body)}\r\n\r\n".encode() + self._body)
        await self._writer.drain()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def read_until(self, wanted: bytes) -> None:
        await self._reader.readuntil(wanted)

    def leave(self) -> None:
        self._writer.close()


def phases(made: Rig) -> list[str]:
    return [one.phase for one in made.gateway.inflight.attempts]


async def all_over(made: Rig) -> None:
    """Nothing is in flight, no replica generates, and the call is told as cancelled."""
    await made.idle()
    assert {event["outcome"] for event in made.events("call_ended")} == {"cancelled"}
    assert {event["outcome"] for event in made.events("attempt_ended")} <= {"cancelled", "failed"}
    assert made.gateway.live_replicas() == 2, "leaving says nothing about a replica"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("stage", ["headers", "first_token", "streaming"])
async def test_while_the_replica_works(made: Rig, stage: str, stream: bool) -> None:
    gate = asyncio.Event()
    behaviour = {
        "headers": Behaviour(headers_gate=gate),
        "first_token": Behaviour(first_token_gate=gate),
        "streaming": Behaviour(token_gate=gate, stall_after=2),
    }[stage]
    for replica in made.replicas:
        replica.behaviour = behaviour
    async with Client(made, {**BODY, "stream": stream}) as client:
        await made.until(lambda: phases(made) == [stage])
        await made.until(lambda: sum(replica.running for replica in made.replicas) == 1)
        client.leave()
        await all_over(made)
    assert [seen.left_early for replica in made.replicas for seen in replica.seen] == [True]


async def test_while_tokens_flow(made: Rig) -> None:
    for replica in made.replicas:
        replica.behaviour = Behaviour(token_interval_s=0.005)
    async with Client(made, {**BODY, "stream": True}) as client:
        await client.read_until(b"plain7")
        client.leave()
        await all_over(made)
    seen = next(one for replica in made.replicas for one in replica.seen)
    assert seen.sent_tokens < 500
    assert seen.left_early


async def test_in_the_backoff_between_two_attempts() -> None:
    async with rig(2) as made:
        for replica in made.replicas:
            replica.behaviour = Behaviour(status=503, retry_after="20")
        async with Client(made, {**BODY, "stream": True}) as client:
            await made.until(lambda: made.events("retry"))
            await made.until(lambda: not made.gateway.inflight.attempts)
            assert len(made.gateway.calls) == 1
            client.leave()
            await all_over(made)
        assert len(made.events("attempt_started")) == 1


@pytest.fixture
async def tool() -> AsyncIterator[FakeTool]:
    async with fake_tool() as built:
        built.gate = asyncio.Event()
        yield built


async def test_in_the_tool_phase(made: Rig, tool: FakeTool) -> None:
    made.gateway.discovery.tool_address = tool.address
    async with Client(made, {**BODY, "tool_call": {"method": "get_price"}}) as client:
        await tool.called.wait()
        client.leave()
        await all_over(made)
        await made.until(lambda: tool.left_early == 1)
    assert [event["outcome"] for event in made.events("tool")] == ["cancelled"]
    assert all(replica.seen == [] for replica in made.replicas)


async def test_a_client_that_does_not_read_holds_its_replica_back_and_is_not_taken_for_a_stall() -> None:
    async with rig(1, stall_timeout_s=2) as made:
        made.replicas[0].behaviour = Behaviour()
        body = {**BODY, "stream": True, "max_tokens": 4000, "n": 8}
        async with Client(made, body) as client:
            client._reader._transport.pause_reading()  # type: ignore[attr-defined]
            await made.until(lambda: made.replicas[0].seen and made.replicas[0].seen[0].sent_tokens > 100)
            await asyncio.sleep(3)  # longer than the time-out that must not strike
            assert phases(made) == ["streaming"], "and the replica is not blamed for the silence"
            client.leave()
            await made.idle()


async def test_a_storm_of_leaving_clients_leaves_nothing_behind(made: Rig) -> None:
    """Whatever the stage at which each of them leaves (fault 10 of docs/faults.md)."""
    for replica in made.replicas:
        replica.behaviour = Behaviour(token_interval_s=0.002)

    async def come_and_go(number: int) -> None:
        async with Client(made, {**BODY, "stream": bool(number % 2)}) as client:
            await asyncio.sleep(number % 23 * 0.002)
            client.leave()

    await asyncio.gather(*(come_and_go(number) for number in range(150)))
    await made.idle()
    for replica in made.replicas:
        replica.behaviour = Behaviour()
    async with made.http.post(made.url + CHAT, json=BODY) as response:
        assert response.status == 200, "the gateway still serves"
