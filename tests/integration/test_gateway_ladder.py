"""The ladder in a real gateway: what each rung sends to the replica, and how the caller is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster import public
from cluster.model.tokenizer import train, training_text
from policies.work import Work
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour
from tests.fakes.tool import FakeTool, fake_tool

CHAT = "/v1/chat/completions"
SHEDDABLE = {public.HEADER_PRIORITY: "sheddable"}
OLD = [{"role": "user", "content": "old " * 900}, {"role": "assistant", "content": "so " * 400}]
MESSAGES = [{"role": "system", "content": "be kind"}, *OLD, {"role": "user", "content": "say something"}]


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(1, short_context_tokens=300, ladder_dwell_s=60) as built:
        yield built


async def down(made: Rig, level: int) -> None:
    """Press the service until its ladder stands that low."""
    async with asyncio.timeout(30):
        while made.gateway.ladder_level() < level:
            made.gateway.rates.arrived(Work(0, 1_000_000))
            await ask(made)
            await asyncio.sleep(0.05)
    await made.idle()
    for replica in made.replicas:
        replica.seen.clear()


async def ask(made: Rig, headers: dict[str, str] | None = None, **fields: Any) -> tuple[int, Any, Any]:
    """Return status, headers, and the body: the events of a stream, else JSON."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 8, **fields}
    async with made.http.post(made.url + CHAT, json=body, headers=headers) as response:
        raw = (await response.read()).decode()
        if response.content_type == "text/event-stream":
            events = [event.removeprefix("data: ") for event in raw.split("\n\n") if event]
            assert events.pop() == "[DONE]"
            return response.status, response.headers, [json.loads(event) for event in events]
        return response.status, response.headers, json.loads(raw)


@pytest.mark.parametrize("profile", public.PROFILES)
async def test_a_call_that_is_not_pressed_is_answered_in_full_and_says_so(made: Rig, profile: str) -> None:
    await made.profile(profile)
    _, headers, body = await ask(made, SHEDDABLE)
    assert headers[public.HEADER_RUNG] == "full"
    assert "brownout" not in body
    _, headers, events = await ask(made, SHEDDABLE, stream=True)
    assert headers[public.HEADER_RUNG] == "full"
    assert not any("brownout" in event for event in events)


async def test_each_rung_takes_more_away_and_tells(made: Rig) -> None:
    main = made.replicas[0]
    seen: list[tuple[str, int, int]] = []
    [small] = await made.small()
    for level in range(5):
        await down(made, level)
        status, headers, body = await ask(made, SHEDDABLE, messages=MESSAGES, max_tokens=10)
        assert status == 200
        replica = small if headers[public.HEADER_REPLICA] == "small-0.b" else main
        sent = replica.seen[-1].body
        seen.append((headers[public.HEADER_RUNG], sent["max_tokens"], len(sent["messages"])))
        assert body["choices"][0]["finish_reason"] == "length", "what was cut short says so"
        assert body["usage"]["completion_tokens"] == sent["max_tokens"]
        assert body.get("brownout", {"rung": "full"}) == {"rung": headers[public.HEADER_RUNG]}
    assert seen == [
        ("full", 10, 4),
        ("short_output", 5, 4),
        ("short_context", 5, 2),
        ("short_context", 5, 2),  # it has no tool that could be left out
        ("small_model", 5, 2),
    ]
    assert sent["messages"] == [MESSAGES[0], MESSAGES[-1]]
    assert (sent["model"], body["model"]) == (public.SMALL_MODEL_NAME, public.SMALL_MODEL_NAME)
    await made.idle()
    assert made.gateway.small.ledger.total.tokens == 0


@pytest.mark.parametrize("usage", [False, True])
async def test_the_last_event_of_a_stream_tells_the_rung(made: Rig, usage: bool) -> None:
    await down(made, 1)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    _, headers, events = await ask(made, SHEDDABLE, stream=True, max_tokens=10, **options)
    assert headers[public.HEADER_RUNG] == "short_output"
    assert [event.get("brownout") for event in events][-1] == {"rung": "short_output"}
    assert not any("brownout" in event for event in events[:-1])
    finish = [c["finish_reason"] for event in events for c in event["choices"] if c["finish_reason"]]
    assert finish == ["length"]


async def test_the_official_client_takes_a_degraded_stream(made: Rig) -> None:
    await down(made, 1)
    stream = await made.openai().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x"}],
        max_tokens=10,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=SHEDDABLE,
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert (chunks[-1].model_extra or {})["brownout"] == {"rung": "short_output"}


@pytest.mark.parametrize(
    ("level", "rung", "model"), [(1, "short_output", MODEL), (4, "small_model", public.SMALL_MODEL_NAME)]
)
async def test_a_degraded_stream_that_is_cut_goes_on_as_it_was_asked_for(
    level: int, rung: str, model: str
) -> None:
    """Continued from the lesser request, not from the client's own: no longer, and at the same model."""
    async with rig(2, tokenizer=train(training_text(), 600), ladder_dwell_s=60) as made:
        await made.small(2)
        await down(made, level)
        asking: dict[str, Any] = {"stream": True, "max_tokens": 30, "temperature": 0}
        _, _, undisturbed = await ask(made, SHEDDABLE, **asking)
        for replica in made.replicas:
            replica.seen.clear()
            replica.script.append(Behaviour(cut_after=4))
        _, headers, events = await ask(made, SHEDDABLE, **asking)
        assert headers[public.HEADER_RUNG] == rung
        assert events[-1]["brownout"]["rung"] == rung
        assert events[-1]["brownout"]["resumes"] >= 1
        assert text_of(events) == text_of(undisturbed)
        asked = [seen.body["model"] for replica in made.replicas for seen in replica.seen]
        assert len(asked) >= 2
        assert set(asked) == {model}


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])


async def test_critical_work_keeps_its_place(made: Rig) -> None:
    await made.small()
    await down(made, 4)
    for headers in ({}, {public.HEADER_PRIORITY: "critical_plus"}):
        _, got, _ = await ask(made, headers, messages=MESSAGES, max_tokens=10)
        assert got[public.HEADER_RUNG] == "full"
        assert made.replicas[0].seen[-1].body["max_tokens"] == 10


async def test_without_a_smaller_model_that_rung_is_skipped(made: Rig) -> None:
    await down(made, 4)
    _, headers, _ = await ask(made, SHEDDABLE, messages=MESSAGES)
    assert headers[public.HEADER_RUNG] == "short_context"
    assert headers[public.HEADER_REPLICA] == "replica-0.a"


async def test_the_smaller_models_replicas_get_nothing_but_its_calls(made: Rig) -> None:
    [small] = await made.small()
    for _ in range(4):
        await ask(made, SHEDDABLE)
    assert small.seen == []
    assert [replica.name for replica in made.gateway.fleet.replicas] == ["replica-0.a"]
    await down(made, 4)
    for stream in (False, True):
        await ask(made, SHEDDABLE, stream=stream)
    assert len(small.seen) == 2
    assert made.replicas[0].seen == []
    await made.links.set([("replica-0.a", made.replicas[0].address)])
    await made.until(lambda: made.gateway.small.name() is None)
    _, headers, _ = await ask(made, SHEDDABLE)
    assert headers[public.HEADER_REPLICA] == "replica-0.a"


@pytest.fixture
async def tool() -> AsyncIterator[FakeTool]:
    async with fake_tool() as built:
        yield built


async def test_an_optional_tool_is_left_out_and_a_needed_one_is_asked(made: Rig, tool: FakeTool) -> None:
    made.gateway.discovery.tool_address = tool.address
    asking = {"method": "get_price", "params": {"symbol": "BTC"}, "optional": True}
    _, headers, _ = await ask(made, SHEDDABLE, tool_call=asking)
    assert headers[public.HEADER_TOOL] == "ok"
    await down(made, 3)
    status, headers, body = await ask(made, SHEDDABLE, tool_call=asking)
    assert (status, headers[public.HEADER_TOOL], headers[public.HEADER_RUNG]) == (200, "skipped", "no_tools")
    assert body["brownout"] == {"rung": "no_tools"}
    assert len(tool.calls) == 1
    assert [event["outcome"] for event in made.events("tool")] == ["ok", "skipped"]
    _, headers, _ = await ask(made, SHEDDABLE, tool_call={**asking, "optional": False})
    assert headers[public.HEADER_TOOL] == "ok"
    _, headers, _ = await ask(made, tool_call=asking)
    assert headers[public.HEADER_TOOL] == "ok", "critical work keeps its tools"


async def test_a_refused_call_is_lessened_before_it_is_turned_away(made: Rig) -> None:
    """The prompt alone would come too late; without its oldest turns it does not."""
    await made.profile("resilient", ttft_objective_s=0.2, stall_timeout_s=20)
    gate = asyncio.Event()
    made.replicas[0].script.append(Behaviour(first_token_gate=gate))
    running = asyncio.ensure_future(ask(made, stream=True))
    await made.until(lambda: made.replicas[0].running == 1)
    status, headers, body = await ask(made, messages=MESSAGES)
    assert (status, headers[public.HEADER_RUNG]) == (200, "short_context")
    assert body["brownout"] == {"rung": "short_context"}
    status, headers, _ = await ask(made, {public.HEADER_PRIORITY: "critical_plus"}, messages=MESSAGES)
    assert (status, headers[public.HEADER_RUNG]) == (503, "refuse"), "it may not lose its context"
    gate.set()
    await running
    ended = {event["outcome"]: (event["reason"], event["rung"]) for event in made.events("call_ended")}
    assert ended == {"ok": ("", "full"), "refused": ("overloaded", "refuse")}
    assert [event["rung"] for event in made.events("degraded")] == [
        "short_output",
        "short_context",
        "short_output",
    ]


async def test_events_and_metrics_tell_of_the_ladder(made: Rig) -> None:
    await down(made, 2)
    await ask(made, SHEDDABLE, messages=MESSAGES)
    assert [event["level"] for event in made.events("level")] == [1, 2]
    assert {event["reason"] for event in made.events("level")} == {"load"}
    assert [event["rung"] for event in made.events("degraded")] == ["short_context"]
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        text = await response.text()
    assert f"{public.METRIC_LADDER_LEVEL} 2.0" in text
    assert f'{public.METRIC_RUNGS}{{rung="short_context"}} 1.0' in text


async def test_a_class_may_be_told_how_far_it_goes() -> None:
    async with rig(1, class_rungs="fraud=full, summary=short_output", ladder_dwell_s=60) as made:
        await down(made, 4)
        for name, rung in (("fraud", "full"), ("summary", "short_output"), ("other", "full")):
            _, headers, _ = await ask(made, {public.HEADER_CLASS: name})
            assert headers[public.HEADER_RUNG] == rung
        _, headers, _ = await ask(made, {**SHEDDABLE, public.HEADER_CLASS: "fraud"})
        assert headers[public.HEADER_RUNG] == "full"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (public.HEADER_PRIORITY, "urgent"),
        (public.HEADER_TENANT, "a b"),
        (public.HEADER_TENANT, "x" * 129),
        (public.HEADER_CLASS, ""),
    ],
)
async def test_a_standing_that_cannot_be_is_the_callers_mistake(made: Rig, name: str, value: str) -> None:
    status, _, body = await ask(made, {name: value})
    assert (status, body["error"]["param"]) == (400, name)
    assert made.replicas[0].seen == []
