"""Hedges over real sockets: the faster replica answers, and the loser's connection is closed. (Fault 11.)"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from cluster import public
from policies.hedging import HedgingSettings
from policies.parts import ProfileSettings
from policies.profiles import build
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour, FakeReplica
from tests.fakes.toy_model import token_text

TOKENS = 4
EXPECTED = "".join(token_text(number) for number in range(TOKENS))
AT_ONCE = 20
HEDGES = 300


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    """A gateway that hedges and does nothing else, and that knows already what is usual."""
    async with rig(3) as built:
        body = {"profile": "naive", "with": ["hedging"]}
        async with built.http.put(f"{built.admin_url}/admin/profile", json=body) as response:
            assert response.status == 200, await response.text()
        for _ in range(25):
            assert (await ask(built))[0] == 200
        await built.idle()
        yield built


async def ask(made: Rig, *, stream: bool = True, **fields: Any) -> tuple[int, Any, str]:
    body = {"model": MODEL, "prompt": "say", "max_tokens": TOKENS, "stream": stream, **fields}
    async with made.http.post(f"{made.url}/v1/completions", json=body) as response:
        return response.status, response.headers, (await response.read()).decode()


def said(answer: str) -> str:
    """Return the text of an answer, streamed or whole."""
    chunks = [line.removeprefix("data: ") for line in answer.split("\n\n") if line and "[DONE]" not in line]
    return "".join(c["text"] for chunk in chunks for c in json.loads(chunk)["choices"])


def stuck(made: Rig) -> tuple[FakeReplica, asyncio.Event]:
    """Let the first replica take calls and give no token until the event is set."""
    gate = asyncio.Event()
    made.replicas[0].behaviour = Behaviour(first_token_gate=gate)
    return made.replicas[0], gate


def connections(made: Rig) -> int:
    """Return how many connections the gateway holds to anything but the links service."""
    connector = made.gateway._upstream._session.connector
    assert isinstance(connector, aiohttp.TCPConnector)
    held = [key for key, protocols in connector._acquired_per_host.items() for _ in protocols]
    return sum(f"{key.host}:{key.port}" in {one.address for one in made.replicas} for key in held)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_second_replica_answers_and_the_first_is_left_alone(made: Rig, stream: bool) -> None:
    slow, _ = stuck(made)
    before = len(slow.seen)
    answers = await asyncio.gather(*(ask(made, stream=stream) for _ in range(6)))
    mine = {headers[public.HEADER_REQUEST_ID] for _, headers, _ in answers}
    hedged = {
        headers[public.HEADER_REQUEST_ID]
        for _, headers, _ in answers
        if headers[public.HEADER_ATTEMPTS] == "2"
    }
    assert hedged
    assert {headers[public.HEADER_REPLICA] for _, headers, _ in answers} <= {"replica-1.a", "replica-2.a"}
    assert all(status == 200 for status, _, _ in answers)
    assert {said(text) for _, _, text in answers} == {EXPECTED}, "nobody hears two voices"
    await made.idle()
    # of calls to the others one or another may be hedged too where the machine is busy, those of before as well
    asked = [one for one in made.events("attempt_ended") if one["request_id"] in mine]
    assert {one["outcome"] for one in asked if one["replica"] == "replica-0.a"} == {"cancelled"}
    assert all(one.left_early and one.sent_tokens == 0 for one in slow.seen[before:])
    names = [one["request_id"] for one in made.events("hedged") if one["request_id"] in mine]
    assert sorted(names) == sorted(hedged), "each at most once"


async def test_a_call_with_tools_is_never_hedged(made: Rig) -> None:
    _, gate = stuck(made)
    tool = {
        "type": "function",
        "function": {"name": "pay", "parameters": {"type": "object", "properties": {}}},
    }
    body = {"model": MODEL, "messages": [{"role": "user", "content": "pay"}], "max_tokens": TOKENS}

    async def chat(number: int) -> int:
        url, named = f"{made.url}/v1/chat/completions", {public.HEADER_REQUEST_ID: f"tool-{number}"}
        async with made.http.post(url, json={**body, "tools": [tool]}, headers=named) as response:
            await response.read()
            return response.status

    asked = [asyncio.create_task(chat(number)) for number in range(6)]
    await made.replicas[0].until(lambda: made.replicas[0].running > 0)
    while not made.events("hedged"):  # calls without tools that came later
        assert (await ask(made))[0] == 200
    gate.set()
    assert set(await asyncio.gather(*asked)) == {200}
    assert not [one for one in made.events("hedged") if one["request_id"].startswith("tool-")]


async def test_hundreds_of_cancelled_hedges_leave_no_connection(made: Rig) -> None:
    # a third of the calls are stuck, so that what is usual is to be read at the median
    knobs = ProfileSettings(hedging=HedgingSettings(quantile=0.5))
    gateway = made.gateway
    gateway.pipeline = build("naive", gateway._upstream, gateway._around, knobs, extra=["hedging"])
    await asyncio.gather(*(ask(made) for _ in range(3 * AT_ONCE)))
    stuck(made)
    while len(made.events("hedged")) < HEDGES:
        answers = await asyncio.gather(*(ask(made) for _ in range(AT_ONCE)))
        assert {status for status, _, _ in answers} == {200}
    await made.idle()
    await made.until(lambda: connections(made) == 0)
    assert {one["outcome"] for one in made.events("attempt_ended")} == {"ok", "cancelled"}, (
        "no loser has failed"
    )
    async with asyncio.timeout(5.0):
        assert (await ask(made))[0] == 200
