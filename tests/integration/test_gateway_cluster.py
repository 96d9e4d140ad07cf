"""The gateway in front of real vLLM: its client libraries, clients that leave, and an engine that dies."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest

from cluster import public
from cluster.gateway.tokens import load
from cluster.public import ClusterState
from cluster.settings import current
from tests.fakes.live import Live, look_at, observed

pytestmark = pytest.mark.cluster

MESSAGES: Any = [{"role": "user", "content": "Tell me about the service and its replicas, please."}]
LONG = 3000
"""Tokens that take over a minute to generate: only leaving can end them sooner."""


@dataclass
class Lab:
    """The running cluster, with what these tests ask it."""

    state: ClusterState
    live: Live

    @property
    def http(self) -> aiohttp.ClientSession:
        return self.live.session

    async def running(self) -> int:
        """Return the sum of the engines' own counts of running requests, as the links service passes them on."""
        total = 0.0
        for replica in await self.live.replicas():
            async with self.http.get(f"{self.state.links_url}/replicas/{replica.link}/metrics") as response:
                text = await response.text()
            total += sum(map(float, re.findall(rf"^{public.VLLM_RUNNING}{{.*}} (\S+)$", text, re.M)))
        return int(total)

    async def inflight(self) -> dict[str, Any]:
        async with self.http.get(f"{self.state.admin_url}/admin/inflight") as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def profile(self, profile: str) -> None:
        body = {"profile": profile}
        async with self.http.put(f"{self.state.admin_url}/admin/profile", json=body) as response:
            assert response.status == 200

    async def until_idle(self) -> None:
        """Wait until neither the engines nor the gateway have anything in flight."""

        async def idle() -> bool:
            return await self.running() == 0 and (await self.inflight())["calls"] == 0

        await observed("all engines and the gateway are idle", idle, 30)


@pytest.fixture
async def lab(cluster: ClusterState) -> AsyncIterator[Lab]:
    async with look_at(cluster) as live:
        made = Lab(cluster, live)
        await live.whole()
        await made.profile("resilient")
        await made.until_idle()
        yield made
        await made.profile("resilient")


@pytest.fixture
async def client(cluster: ClusterState) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{cluster.base_url}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


async def test_the_official_client_end_to_end(lab: Lab, client: openai.AsyncOpenAI) -> None:
    model, greedy = lab.state.model, {"temperature": 0, "max_tokens": 24}
    whole = await client.chat.completions.create(model=model, messages=MESSAGES, **greedy)  # type: ignore[call-overload]
    stream = await client.chat.completions.create(  # type: ignore[call-overload]
        model=model, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **greedy
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    counted = load(current()).chat(MESSAGES)
    assert counted.exact
    assert whole.usage.prompt_tokens == counted.tokens, "the gateway counts as the engine does"
    written = await client.completions.create(model=model, prompt="The replica", temperature=0, max_tokens=8)
    assert written.usage is not None
    assert written.usage.prompt_tokens == load(current()).text("The replica").tokens
    assert [one.id async for one in client.models.list()] == [model]


async def test_the_synchronous_client_end_to_end(lab: Lab) -> None:
    def talk() -> str:
        with openai.OpenAI(base_url=f"{lab.state.base_url}/v1", api_key="none", max_retries=0) as sync:
            stream = sync.chat.completions.create(
                model=lab.state.model, messages=MESSAGES, max_tokens=8, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(talk)


async def test_what_the_engine_finds_wrong_is_a_400_of_its_own(lab: Lab, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(
            model=lab.state.model, prompt="x", max_tokens=2, extra_body={"min_tokens": 5}
        )
    await lab.until_idle()


@pytest.mark.parametrize("profile", ["naive", "resilient"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_frees_the_engines_slot(lab: Lab, stream: bool, profile: str) -> None:
    await lab.profile(profile)
    body = {"model": lab.state.model, "messages": MESSAGES, "max_tokens": LONG, "stream": stream}

    async def ask() -> None:
        async with lab.http.post(f"{lab.state.base_url}/v1/chat/completions", json=body) as response:
            await response.read()

    async def generating() -> bool:
        return await lab.running() == 1

    asking = asyncio.ensure_future(ask())
    await observed("one request runs in an engine", generating)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await lab.until_idle()


async def test_a_storm_of_leaving_clients_leaves_no_slot_taken(lab: Lab) -> None:
    body = {"model": lab.state.model, "messages": MESSAGES, "max_tokens": LONG, "stream": True}

    async def come_and_go(number: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02 * (1 + number % 30)):
                url = f"{lab.state.base_url}/v1/chat/completions"
                async with lab.http.post(url, json=body) as response:
                    await response.read()

    await asyncio.gather(*(come_and_go(number) for number in range(60)))
    await lab.until_idle()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_killing_the_engine_of_a_running_call(
    lab: Lab, client: openai.AsyncOpenAI, stream: bool
) -> None:
    """Streaming or not, another replica goes on at the next token, and the client notices nothing."""
    request = {"model": lab.state.model, "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
    expected = await client.chat.completions.create(**request)
    await lab.until_idle()

    async def read(raw: Any) -> Any:
        if not stream:
            return raw.parse()
        return [chunk async for chunk in raw.parse()]

    async def ask() -> tuple[Any, Any]:
        raw = await client.chat.completions.with_raw_response.create(**request, stream=stream)
        return raw, await read(raw)

    asking = asyncio.ensure_future(ask())
    found: dict[str, Any] = {}

    async def streaming() -> bool:
        found.update(await lab.inflight())
        return [one["phase"] for one in found["attempts"]] == ["streaming"]

    await observed("the call streams from a replica", streaming)
    victim = found["attempts"][0]["replica"]
    replica = next(one for one in await lab.live.replicas() if one.link == victim)
    replica.engine_core().kill()
    raw, answer = await asking
    if stream:
        assert raw.headers[public.HEADER_ATTEMPTS] == "1", "the headers are out before the engine dies"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        assert text == expected.choices[0].message.content
        assert [chunk.choices[0].finish_reason for chunk in answer][-1] == "length"
        assert answer[-1].model_extra["brownout"]["resumes"] == 1
    else:
        assert raw.headers[public.HEADER_ATTEMPTS] == "2"
        assert raw.headers[public.HEADER_REPLICA] != victim
        assert answer.choices[0].message.content == expected.choices[0].message.content
        assert answer.usage == expected.usage

    await lab.live.whole(without=victim)
    await lab.until_idle()


async def test_the_real_tool_answers_over_its_link_and_its_answer_goes_into_the_prompt(lab: Lab) -> None:
    async def prompt_tokens(extra: dict[str, Any]) -> tuple[str | None, int]:
        body = {"model": public.MODEL_NAME, "messages": MESSAGES, "max_tokens": 4, **extra}
        async with lab.http.post(f"{lab.state.base_url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            return response.headers.get(public.HEADER_TOOL), (await response.json())["usage"]["prompt_tokens"]

    tool_call = {"method": "get_price", "params": {"symbol": "BTC"}}
    without = await prompt_tokens({})
    optional = await prompt_tokens({"tool_call": {**tool_call, "optional": True}})
    essential = await prompt_tokens({"tool_call": tool_call})
    assert without[0] is None
    assert optional[0] == essential[0] == "ok"
    assert optional[1] == essential[1] > without[1]
