"""The tool phase: its answer in the prompt, its deadline, and what becomes of a call without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster import public
from policies.breaker import State
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL
from tests.fakes.tool import FakeTool, fake_tool

CALL: dict[str, Any] = {"method": "get_price", "params": {"symbol": "BTC"}}


@pytest.fixture
async def tool() -> AsyncIterator[FakeTool]:
    async with fake_tool() as built:
        yield built


@pytest.fixture
async def made(tool: FakeTool) -> AsyncIterator[Rig]:
    async with rig(1, tool_deadline_s=0.3) as built:
        built.gateway.discovery.tool_address = tool.address
        yield built


async def ask(made: Rig, tool_call: dict[str, Any], **options: Any) -> tuple[int, Any, Any]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "price?"}],
        "max_tokens": 2,
        "tool_call": tool_call,
    }
    async with made.http.post(f"{made.url}/v1/chat/completions", json=body, **options) as response:
        return response.status, response.headers, await response.json()


async def test_the_answer_goes_into_the_prompt(made: Rig, tool: FakeTool) -> None:
    status, headers, _ = await ask(made, CALL)
    assert (status, headers[public.HEADER_TOOL]) == (200, "ok")
    sent = made.replicas[0].seen[0].body
    assert sent["messages"][0]["content"] == 'price?\n\n[get_price] {"price": "123.45", "symbol": "BTC"}'
    assert "tool_call" not in sent
    assert tool.calls[0]["method"] == "get_price"
    assert tool.calls[0]["params"] == {"symbol": "BTC"}
    assert tool.calls[0]["jsonrpc"] == "2.0"


async def test_what_is_no_character_in_an_answer_is_replaced(made: Rig, tool: FakeTool) -> None:
    """JSON can write half of a surrogate pair, which neither a replica nor the store can be told."""
    tool.price = "1\ud8002 \U0001f4b6"
    assert (await ask(made, CALL))[0] == 200
    assert '"price": "1?2 \U0001f4b6"' in made.replicas[0].seen[0].body["messages"][0]["content"]


async def test_without_a_tool_call_nothing_is_said_of_one(made: Rig) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2}
    async with made.http.post(f"{made.url}/v1/completions", json=body) as response:
        assert public.HEADER_TOOL not in response.headers


@pytest.mark.parametrize("optional", [True, False])
async def test_a_tool_that_hangs_costs_its_deadline_and_no_more(
    made: Rig, tool: FakeTool, optional: bool
) -> None:
    tool.gate = asyncio.Event()
    status, headers, body = await ask(made, {**CALL, "optional": optional})
    assert headers[public.HEADER_TOOL] == "deadline"
    if optional:
        assert status == 200
        assert made.replicas[0].seen[0].body["messages"][0]["content"] == "price?"
    else:
        assert (status, body["error"]["type"]) == (504, public.ERROR_TOOL)
        assert made.replicas[0].seen == []
    assert [event["outcome"] for event in made.events("tool")] == ["deadline"]
    assert len(tool.calls) == 1, "a tool is never asked twice"
    await made.until(lambda: tool.left_early == 1)


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("fault", ["error", "lost", "gone", "nonsense"])
async def test_a_tool_that_fails(made: Rig, tool: FakeTool, fault: str, optional: bool) -> None:
    if fault == "error":
        tool.failure = {"code": -32000, "message": "congested"}
    elif fault == "lost":
        tool.lose_answer = True
    elif fault == "nonsense":
        made.gateway.discovery.tool_address = made.replicas[0].address
    else:
        made.gateway.discovery.tool_address = "127.0.0.1:1"
    status, headers, body = await ask(made, {**CALL, "optional": optional})
    assert headers[public.HEADER_TOOL] == "error"
    if optional:
        assert status == 200
    else:
        assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL)
        assert public.HEADER_SHOULD_RETRY not in headers, "it only reads, so that asking again is harmless"
        assert fault != "error" or "congested" in body["error"]["message"]
    assert len(tool.calls) <= 1


async def test_naive_waits_for_the_tool_as_long_as_its_client_does(made: Rig, tool: FakeTool) -> None:
    await made.profile("naive")
    tool.gate = asyncio.Event()
    asking = asyncio.ensure_future(ask(made, {**CALL, "optional": True}))
    await tool.called.wait()
    await asyncio.sleep(0.5)
    assert not asking.done()
    tool.gate.set()
    assert (await asking)[1][public.HEADER_TOOL] == "ok"


async def test_the_deadline_of_the_call_bounds_the_tool_phase_too(made: Rig, tool: FakeTool) -> None:
    tool.gate = asyncio.Event()
    await made.profile("resilient", tool_deadline_s=30)
    optional = {**CALL, "optional": True}
    status, _, body = await ask(made, optional, headers={public.HEADER_DEADLINE: "0.3"})
    assert (status, body["error"]["type"]) == (504, public.ERROR_TIMEOUT)
    assert made.replicas[0].seen == []


async def test_a_prompt_of_token_ids_has_no_room_for_an_answer_and_the_tool_is_not_asked(
    made: Rig, tool: FakeTool
) -> None:
    body = {"model": MODEL, "prompt": [1, 2, 3], "tool_call": CALL}
    async with made.http.post(f"{made.url}/v1/completions", json=body) as response:
        assert response.status == 400
    assert tool.calls == []


async def test_a_call_that_cannot_be_answered_anyway_does_not_make_the_tool_act(
    made: Rig, tool: FakeTool
) -> None:
    too_long = {"model": MODEL, "prompt": "price?", "max_tokens": 9999, "tool_call": CALL}
    async with made.http.post(f"{made.url}/v1/completions", json=too_long) as response:
        assert response.status == 400
    await made.announce()
    status, _, body = await ask(made, CALL)
    assert (status, body["error"]["type"]) == (503, public.ERROR_NO_REPLICA)
    assert tool.calls == []
    assert [event["reason"] for event in made.events("refused")] == ["no_replica"]


# --- the breaker -----------------------------------------------------------------------------------------


async def break_it(made: Rig, tool: FakeTool) -> int:
    """Let the tool fail until its breaker opens, or twenty times; return how often it was asked."""
    tool.failure = {"code": -32000, "message": "congested"}
    for _ in range(20):
        _, headers, _ = await ask(made, {**CALL, "optional": True})
        if headers[public.HEADER_TOOL] == "breaker":  # going on, a slow machine would see its first probe
            break
    return len(tool.calls)


async def test_a_tool_that_keeps_failing_is_left_alone_and_optional_calls_go_without_it(
    made: Rig, tool: FakeTool
) -> None:
    await made.profile("resilient", "ladder", tool_deadline_s=30)
    asked = await break_it(made, tool)
    assert asked == 10
    status, headers, _ = await ask(made, {**CALL, "optional": True})
    assert (status, headers[public.HEADER_TOOL]) == (200, "breaker")
    assert made.replicas[0].seen[-1].body["messages"][0]["content"] == "price?"
    assert len(tool.calls) == asked
    assert made.events("breaker")[0]["state"] == "open"
    assert made.events("tool")[-1]["outcome"] == "breaker"


async def test_a_call_that_cannot_do_without_the_tool_is_told_so_at_once_and_when_to_come_back(
    made: Rig, tool: FakeTool
) -> None:
    asked = await break_it(made, tool)
    answered = len(made.replicas[0].seen)
    status, headers, body = await ask(made, {**CALL, "optional": False})
    assert (status, body["error"]["type"]) == (503, public.ERROR_BREAKER)
    assert headers[public.HEADER_TOOL] == "breaker"
    assert int(headers["retry-after"]) >= 1
    assert headers.get(public.HEADER_SHOULD_RETRY) != "false", "nothing can have acted"
    assert (len(tool.calls), len(made.replicas[0].seen)) == (asked, answered)


async def test_once_the_tool_is_well_again_a_probe_finds_out(made: Rig, tool: FakeTool) -> None:
    await break_it(made, tool)
    tool.failure = None
    breakers = made.gateway.pipeline.tool_breakers
    assert breakers is not None
    breaker = breakers["get_price"]
    await made.until(lambda: breaker.state is not State.OPEN)
    outcomes = [(await ask(made, CALL))[1][public.HEADER_TOOL] for _ in range(3)]
    assert outcomes == ["ok"] * 3
    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("code", [-32602, -32601, -32600, -32001])
async def test_calls_that_are_wrong_do_not_take_the_tool_from_others(
    made: Rig, tool: FakeTool, code: int
) -> None:
    tool.failure = {"code": code, "message": "your fault"}
    for _ in range(15):
        status, headers, body = await ask(made, {**CALL, "optional": False})
        assert (status, headers[public.HEADER_TOOL]) == (502, "error")
        assert "your fault" in body["error"]["message"]
    tool.failure = None
    assert (await ask(made, CALL))[1][public.HEADER_TOOL] == "ok"


async def test_without_the_breaker_every_call_asks(made: Rig, tool: FakeTool) -> None:
    # With time for the tool, and nobody who leaves it out: on a busy machine either would make it be asked less.
    await made.profile("resilient", "tool_breaker", "ladder", tool_deadline_s=30)
    assert await break_it(made, tool) == 20
