"""The official client against the gateway: it must not notice that this is not OpenAI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour
from tests.fakes.toy_model import token_text

MESSAGES: Any = [{"role": "user", "content": "say something"}]
EXPECTED = "".join(token_text(number) for number in range(6))


@pytest.fixture(params=["naive", "resilient"])
async def made(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig(2, profile=request.param) as built:
        yield built


async def test_a_chat_is_streamed(made: Rig) -> None:
    stream = await made.openai().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == EXPECTED
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    await made.idle()


async def test_usage_comes_last_when_it_is_asked_for(made: Rig) -> None:
    stream = await made.openai().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_a_chat_is_answered_whole(made: Rig) -> None:
    answer = await made.openai().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=6, n=2, logprobs=True
    )
    assert [choice.message.content for choice in answer.choices] == [
        EXPECTED,
        "".join(token_text(number, 1) for number in range(6)),
    ]
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or ()) == 6
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert all(replica.seen == [] or replica.seen[0].body["stream"] for replica in made.replicas)


async def test_completions_both_ways(made: Rig) -> None:
    client = made.openai()
    whole = await client.completions.create(model=MODEL, prompt="go", max_tokens=6, logprobs=1)
    assert whole.choices[0].text == EXPECTED
    assert whole.choices[0].logprobs is not None
    assert whole.object == "text_completion"
    stream = await client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=6, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == EXPECTED


async def test_the_synchronous_client_works_too(made: Rig) -> None:
    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{made.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6)
            stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            return whole.choices[0].message.content or "", streamed

    assert await asyncio.to_thread(talk) == (EXPECTED, EXPECTED)


async def test_models(made: Rig) -> None:
    client = made.openai()
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other/model")


async def test_the_stream_is_the_replicas_own_byte_for_byte(made: Rig) -> None:
    """And however its bytes are cut into pieces on the way."""
    body = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    seen = set()
    for split in (None, 1, 7, 100):
        for replica in made.replicas:
            replica.behaviour = Behaviour(split=split)
        async with made.http.post(f"{made.url}/v1/chat/completions", json=body) as response:
            seen.add(await response.read())
    async with made.http.post(
        f"http://{made.replicas[0].address}/v1/chat/completions", json=body
    ) as response:
        assert seen == {await response.read()}


async def test_every_answer_says_who_gave_it(made: Rig) -> None:
    profile = made.gateway.pipeline.profile
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2}
    for stream in (False, True):
        headers = {public.HEADER_REQUEST_ID: f"mine-{stream}"}
        async with made.http.post(
            f"{made.url}/v1/chat/completions", json={**body, "stream": stream}, headers=headers
        ) as response:
            await response.read()
            assert response.headers[public.HEADER_REQUEST_ID] == f"mine-{stream}"
            assert response.headers[public.HEADER_PROFILE] == profile
            assert response.headers[public.HEADER_ATTEMPTS] == "1"
            assert response.headers[public.HEADER_REPLICA] in ("replica-0.a", "replica-1.a")
    for path in ("/v1/models", "/v1/nothing"):
        async with made.http.get(f"{made.url}{path}") as response:
            assert response.headers[public.HEADER_REQUEST_ID].startswith("req-")
            assert response.headers[public.HEADER_PROFILE] == profile
    forged = {public.HEADER_REQUEST_ID: "x" * 500}
    async with made.http.get(f"{made.url}/v1/models", headers=forged) as response:
        assert response.headers[public.HEADER_REQUEST_ID].startswith("req-")


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"max_tokens": 5000}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"min_tokens": 9, "max_tokens": 3}}, openai.BadRequestError, None),
    ],
)
async def test_errors_are_those_of_the_client_library(
    made: Rig, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        await made.openai().chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **fields})
    assert caught.value.param == param
    assert caught.value.request_id


async def test_an_error_in_the_stream_raises_in_the_client(made: Rig) -> None:
    for replica in made.replicas:
        replica.behaviour = Behaviour(cut_after=3)
    stream = await made.openai().chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, stream=True
    )
    text = ""
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "".join(token_text(number) for number in range(3))
    assert caught.value.code in (public.ERROR_UPSTREAM_LOST, public.ERROR_NOT_RESUMABLE)
    assert caught.value.type == caught.value.code


async def test_the_clients_own_retries_obey_the_gateway(made: Rig) -> None:
    """No replica: the client is told when to come back, does, and finds one."""
    replica = made.replicas[0]
    await made.announce()
    client = made.openai(max_retries=2)
    asking = asyncio.ensure_future(client.completions.create(model=MODEL, prompt="go", max_tokens=2))
    await made.until(lambda: made.events("refused"))
    await made.announce(("replica-0.b", replica))
    answer = await asking
    assert answer.choices[0].finish_reason == "length"
