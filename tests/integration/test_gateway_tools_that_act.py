"""Tools that act, in the request path: each acts once, and what nobody can know is told and not tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster import public
from cluster.gateway.store.store import StoreUnavailable
from cluster.gateway.tool_client import ToolClient
from cluster.gateway.tools import METHODS, ToolMethod
from tests.fakes.gateway import Rig, rig
from tests.fakes.real_tool import RealTool, real_tool
from tests.fakes.replica import MODEL, Behaviour

PATH = "/v1/completions"
PAY: dict[str, Any] = {
    "method": "submit_transfer",
    "params": {"from": "alice", "to": "bob", "amount": "12.50"},
}
PRICE = {"method": "get_price", "params": {"symbol": "BTC"}}


@pytest.fixture
async def tool() -> AsyncIterator[RealTool]:
    async with real_tool() as running:
        yield running


@pytest.fixture
async def made(tmp_path: Path, tool: RealTool) -> AsyncIterator[Rig]:
    async with rig(1, store=tmp_path / "store.db", tool_deadline_s=0.4, ladder_dwell_s=0.25) as built:
        built.gateway.discovery.tool_address = tool.address
        yield built


def know_only(made: Rig, *methods: ToolMethod) -> None:
    """Let the gateway know other methods than those of the project's tool."""
    gateway = made.gateway
    gateway.tool_methods = {**METHODS, **{method.name: method for method in methods}}
    gateway.tools = ToolClient(gateway.tools._session, gateway.clock, gateway.tool_methods)


async def ask(made: Rig, key: str | None = "k", **changes: Any) -> tuple[int, Any, Any]:
    body = {"model": MODEL, "prompt": "pay", "max_tokens": 3, "tool_call": PAY} | changes
    headers = {} if key is None else {public.HEADER_IDEMPOTENCY_KEY: key}
    async with asyncio.timeout(20):
        while True:
            async with made.http.post(f"{made.url}{PATH}", json=body, headers=headers) as response:
                raw = await response.read()
                if response.status != 409:
                    return response.status, response.headers, raw if body.get("stream") else json.loads(raw)
            await asyncio.sleep(0.02)


async def test_a_transfer_is_made_once_however_often_it_is_asked_for(made: Rig, tool: RealTool) -> None:
    status, headers, _ = await ask(made)
    assert (status, headers[public.HEADER_TOOL]) == (200, "ok")
    assert '[submit_transfer] {"replayed": false, "seq": 1}' in made.replicas[0].seen[0].body["prompt"]
    assert (await ask(made))[1][public.HEADER_REPLAYED] == "true"
    (effect,) = await tool.effects()
    assert (effect["sender"], effect["receiver"], effect["amount"]) == ("alice", "bob", "12.5")
    await ask(made, key="another")
    assert len(await tool.effects()) == 2


@pytest.mark.parametrize(
    ("key", "call", "code"),
    [
        (None, PAY, "idempotency_key_missing"),
        ("k", PAY | {"params": PAY["params"] | {"idempotency_key": "mine"}}, "invalid_value"),
        ("k", {"method": "delete_everything"}, "unknown_tool"),
    ],
)
async def test_what_must_not_act_does_not(
    made: Rig, tool: RealTool, key: str | None, call: dict[str, Any], code: str
) -> None:
    status, _, body = await ask(made, key, tool_call=call)
    assert (status, body["error"]["code"]) == (400, code)
    assert await tool.effects() == []
    assert made.replicas[0].seen == []


async def test_what_was_done_is_used_again_when_the_answer_failed_later(made: Rig, tool: RealTool) -> None:
    await made.profile("naive", tool_deadline_s=5)
    made.replicas[0].script.append(Behaviour(status=500))
    assert (await ask(made))[0] == 502
    status, headers, body = await ask(made, tool_call=PAY | {"params": PAY["params"] | {"amount": "13"}})
    assert (status, body["error"]["code"]) == (422, "idempotency_key_reused"), (
        "the key stays with its request"
    )
    status, headers, _ = await ask(made)
    assert (status, headers[public.HEADER_TOOL]) == (200, "ok")
    assert len(await tool.effects()) == 1
    async with made.http.get(f"{tool.url}/ledger") as response:
        assert (await response.json())["replays"] == 0, "the tool was not even asked again"


async def test_an_effect_whose_answer_was_lost_is_found(made: Rig, tool: RealTool) -> None:
    await tool.control(lose_answer=True, methods=["submit_transfer"])
    status, headers, _ = await ask(made)
    assert (status, headers[public.HEADER_TOOL]) == (200, "ok")
    assert '"seq": 1' in made.replicas[0].seen[0].body["prompt"]
    assert len(await tool.effects()) == 1


async def test_what_cannot_be_found_out_yet_is_told_and_found_later(made: Rig, tool: RealTool) -> None:
    await tool.control(lose_answer=True)  # its looking up too
    status, headers, body = await ask(made)
    assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL_UNKNOWN)
    assert (headers[public.HEADER_TOOL], headers[public.HEADER_SHOULD_RETRY]) == ("unknown", "true")
    assert made.replicas[0].seen == []
    await tool.control()
    assert (await ask(made))[0] == 200
    assert len(await tool.effects()) == 1
    async with made.http.get(f"{tool.url}/ledger") as response:
        assert (await response.json())["replays"] == 0, "it was looked up, not asked again"


async def test_a_tool_that_hung_without_acting_is_asked_again_under_the_same_key(
    made: Rig, tool: RealTool
) -> None:
    await tool.control(hang=True, methods=["submit_transfer"])
    status, _, body = await ask(made)
    assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL_UNKNOWN)
    assert await tool.effects() == []
    await tool.control()
    assert (await ask(made))[0] == 200
    assert len(await tool.effects()) == 1


async def test_where_nothing_can_be_looked_up_unknown_is_the_last_word(made: Rig, tool: RealTool) -> None:
    know_only(made, ToolMethod("submit_transfer", effect=True))
    await tool.control(lose_answer=True)
    status, headers, body = await ask(made)
    assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL_UNKNOWN)
    assert headers[public.HEADER_SHOULD_RETRY] == "false"
    await tool.control()
    again = await ask(made)
    assert (again[0], again[2]) == (502, body), "the same answer, from the record"
    assert again[1][public.HEADER_REPLAYED] == "true"
    assert len(await tool.effects()) == 1


async def test_an_error_before_the_effect_leaves_it_to_the_retry(made: Rig, tool: RealTool) -> None:
    await tool.control(error_rate=1.0, methods=["submit_transfer"])
    status, _, body = await ask(made)
    assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL)
    await tool.control()
    assert (await ask(made))[0] == 200
    assert len(await tool.effects()) == 1


async def test_the_same_key_for_different_callers_is_two_transfers(made: Rig, tool: RealTool) -> None:
    await ask(made)
    async with made.http.post(
        f"{made.url}/v1/chat/completions",
        json={
            "model": MODEL,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 2,
            "tool_call": PAY,
        },
        headers={public.HEADER_IDEMPOTENCY_KEY: "k"},
    ) as response:
        assert response.status == 200
    assert len({effect["idempotency_key"] for effect in await tool.effects()}) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_after_generation_acts_only_when_the_answer_is_there(
    made: Rig, tool: RealTool, stream: bool
) -> None:
    await made.profile("naive", tool_deadline_s=5)
    made.replicas[0].script.append(Behaviour(cut_after=1))
    later = PAY | {"when": "after"}
    await ask(made, tool_call=later, stream=stream)
    assert await tool.effects() == []
    status, _, body = await ask(made, tool_call=later, stream=stream)
    assert status == 200
    assert len(await tool.effects()) == 1
    assert made.replicas[0].seen[1].body["prompt"] == "pay"
    if stream:
        *_, last, done, rest = body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        body = json.loads(last.removeprefix(b"data: "))
    done_one = {"seq": 1, "replayed": False}
    assert body["brownout"]["tools"] == [{"method": "submit_transfer", "outcome": "ok", "result": done_one}]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_whose_last_tool_failed_is_none(made: Rig, tool: RealTool, stream: bool) -> None:
    await tool.control(error_rate=1.0, methods=["submit_transfer"])
    status, _, body = await ask(made, tool_call=PAY | {"when": "after"}, stream=stream)
    if stream:
        assert status == 200
        assert b"tool_failed" in body
        assert not body.endswith(b"data: [DONE]\n\n")
    else:
        assert (status, body["error"]["type"]) == (502, public.ERROR_TOOL)


async def test_several_tools_are_told_one_by_one_and_only_the_essential_count(
    made: Rig, tool: RealTool
) -> None:
    await tool.control(error_rate=1.0, methods=["get_transfer"])
    look = {"method": "get_transfer", "params": {"idempotency_key": "x"}, "optional": True}
    status, headers, _ = await ask(made, None, tool_call=None, tool_calls=[PRICE, look])
    assert (status, headers[public.HEADER_TOOL]) == (200, "get_price=ok, get_transfer=error")
    prompt = made.replicas[0].seen[0].body["prompt"]
    assert "[get_price]" in prompt
    assert "[get_transfer]" not in prompt
    assert "tool_calls" not in made.replicas[0].seen[0].body


async def test_an_essential_tool_that_fails_comes_before_what_would_act(made: Rig, tool: RealTool) -> None:
    await tool.control(error_rate=1.0, methods=["get_price"])
    assert (await ask(made, tool_call=None, tool_calls=[PRICE, PAY]))[0] == 502
    assert await tool.effects() == []


async def test_a_slow_method_fills_its_own_bulkhead_and_holds_no_other(made: Rig, tool: RealTool) -> None:
    know_only(made, ToolMethod("get_transfer", at_once=2))
    await tool.control(hang=True, methods=["get_transfer"])
    look = {"method": "get_transfer", "params": {"idempotency_key": "x"}}
    # Who waits has less time than who is served: with the same, the last moment of the one frees a place for the other.
    await made.profile("resilient", tool_deadline_s=3)
    slow = [asyncio.ensure_future(ask(made, None, tool_call=look)) for _ in range(2)]
    place = made.gateway.tools._bulkheads.place("get_transfer")
    await made.until(place.locked)
    await made.profile("resilient", tool_deadline_s=0.5)
    slow += [asyncio.ensure_future(ask(made, None, tool_call=look)) for _ in range(2)]
    await made.until(lambda: len(made.gateway.calls) == 4)
    await made.profile("resilient", tool_deadline_s=3)
    status, headers, _ = await ask(made, None, tool_call=PRICE)
    assert (status, headers[public.HEADER_TOOL]) == (200, "ok")
    ended = [(status, headers[public.HEADER_TOOL]) for status, headers, _ in await asyncio.gather(*slow)]
    assert sorted(ended) == [(503, "busy")] * 2 + [(504, "deadline")] * 2


async def test_a_method_that_keeps_failing_opens_its_own_breaker_only(made: Rig, tool: RealTool) -> None:
    await tool.control(error_rate=1.0, methods=["get_transfer"])
    look = {"method": "get_transfer", "params": {"idempotency_key": "x"}}
    for _ in range(12):
        _, headers, _ = await ask(made, None, tool_call=look)
    assert headers[public.HEADER_TOOL] == "breaker"
    assert (await ask(made, None, tool_call=PRICE))[1][public.HEADER_TOOL] == "ok"


async def answered_or_done(made: Rig, **headers: str) -> int:
    """Ask once more under the key ``k``, let every job come to its end, and return the status."""
    body = {"model": MODEL, "prompt": "pay", "max_tokens": 3, "tool_call": PAY}
    sent = {public.HEADER_IDEMPOTENCY_KEY: "k", **headers}
    async with asyncio.timeout(20):
        while True:
            async with made.http.post(f"{made.url}{PATH}", json=body, headers=sent) as response:
                if response.status != 409:
                    break
            await asyncio.sleep(0.02)
        assert made.gateway.state.jobs is not None
        while await made.gateway.state.jobs.queue.counts():  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.02)
    return response.status


async def test_a_retry_of_what_has_become_a_job_is_that_job_and_acts_no_second_time(
    made: Rig, tool: RealTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = made.gateway.state.claims

    async def away_once(*_: object) -> bool:
        monkeypatch.undo()
        raise StoreUnavailable("gone")

    monkeypatch.setattr(claims, "finish", away_once)
    assert await answered_or_done(made, prefer="respond-async") == 503, "the job is there none the less"
    assert await answered_or_done(made) == 202
    assert len(await tool.effects()) == 1


async def test_what_may_have_acted_is_put_off_no_more(made: Rig, tool: RealTool) -> None:
    """A job has a key of its own, under which the tool would act again."""
    await made.profile("naive", tool_deadline_s=5)
    made.replicas[0].script.append(Behaviour(status=500))
    assert await answered_or_done(made) == 502
    assert await answered_or_done(made, prefer="respond-async") == 200
    assert len(await tool.effects()) == 1
