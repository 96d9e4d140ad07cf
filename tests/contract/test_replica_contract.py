"""What the gateway relies on in a replica, asked of the fake one and of the real one alike.

As long as this holds for both, what the gateway's tests show against the fake is worth something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from cluster.gateway.assemble import whole_answer
from cluster.gateway.detokenize import Detokenizer
from cluster.gateway.record import Record, without_ids
from cluster.gateway.sse import DONE, EventStream, is_plain_token
from cluster.gateway.tokens import load
from cluster.model.tokenizer import train, training_text
from cluster.public import VLLM_RUNNING, ClusterState
from cluster.settings import current
from policies.progress import Progress
from tests.fakes.policy_bench import FixedClock
from tests.fakes.replica import Behaviour, FakeReplica, fake_replica

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
TOKENS = 12
TOKENIZER = train(training_text(), 600)


@dataclass
class Peer:
    """A replica, real or not."""

    url: str
    model: str
    http: aiohttp.ClientSession
    tokenizer: Any
    fake: FakeReplica | None = None

    def body(self, path: str, **fields: Any) -> dict[str, Any]:
        prompt: dict[str, Any] = {"prompt": "The service"}
        if path == CHAT:
            prompt = {"messages": [{"role": "user", "content": "The service"}]}
        return {"model": self.model, "max_tokens": TOKENS, **prompt, **OPTIONS, **fields}

    async def stream(self, path: str, **fields: Any) -> list[bytes]:
        """Return the events of a stream, each with its empty line."""
        async with self.http.post(self.url + path, json=self.body(path, **fields)) as response:
            assert response.status == 200, await response.text()
            assert response.headers["content-type"].startswith("text/event-stream")
            data = await response.read()
        assert data.endswith(b"\n\n")
        return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]

    async def running(self) -> int:
        """Return the engine's own count of running requests."""
        async with self.http.get(f"{self.url}/metrics") as response:
            text = await response.text()
        return int(sum(float(value) for value in re.findall(rf"^{VLLM_RUNNING}{{.*}} (\S+)$", text, re.M)))

    async def until_running(self, count: int, timeout_s: float = 30.0) -> None:
        async with asyncio.timeout(timeout_s):
            while await self.running() != count:  # noqa: ASYNC110 - the engine can only be asked
                await asyncio.sleep(0.05)


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.cluster)])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[Peer]:
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        if request.param == "fake":
            fake = await stack.enter_async_context(fake_replica(TOKENIZER))
            yield Peer(f"http://{fake.address}", "brownout-tiny", http, TOKENIZER, fake)
            return
        state: ClusterState = request.getfixturevalue("cluster")
        async with http.get(f"{state.links_url}/links?after=-1&wait_s=0") as response:
            links = (await response.json())["links"]
        replica = next(link for link in links if link["kind"] == "replica")
        yield Peer(f"http://{replica['listen']}", state.model, http, load(current()).tokenizer)


def payload(event: bytes) -> dict[str, Any]:
    parsed = json.loads(event[6:])
    assert isinstance(parsed, dict)
    return parsed


async def test_a_chat_stream_opens_brings_tokens_finishes_counts_and_ends(peer: Peer) -> None:
    opening, *tokens, last, usage, done = await peer.stream(CHAT)
    assert payload(opening)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert tokens
    assert all(is_plain_token(event) for event in tokens), "so that the gateway need not parse them"
    assert not is_plain_token(last)
    assert payload(last)["choices"][0]["finish_reason"] == "length"
    assert payload(usage)["choices"] == []
    assert payload(usage)["usage"]["completion_tokens"] == TOKENS
    assert done == DONE


async def test_a_text_stream_has_no_opening(peer: Peer) -> None:
    *tokens, last, usage, done = await peer.stream(TEXT)
    assert all(is_plain_token(event) for event in tokens)
    assert payload(last)["choices"][0]["finish_reason"] == "length"
    assert payload(usage)["usage"]["completion_tokens"] == TOKENS
    assert done == DONE


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_every_choice_comes_to_its_own_finish(peer: Peer, path: str) -> None:
    reading = EventStream(Progress(FixedClock()), choices=3)
    for event in await peer.stream(path, n=3, temperature=1.0, seed=1):
        reading.feed(event)
    reading.end()
    assert reading.usage["completion_tokens"] == 3 * TOKENS


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_usage_comes_only_when_it_is_asked_for(peer: Peer, path: str) -> None:
    events = await peer.stream(path, stream_options=None)
    assert all(b'"usage":{' not in event for event in events)
    assert events[-1] == DONE


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_stream_adds_up_to_a_whole_answer(peer: Peer, path: str) -> None:
    chunks: list[dict[str, Any]] = []
    reading = EventStream(Progress(FixedClock()), collect=chunks)
    for event in await peer.stream(path, logprobs=True if path == CHAT else 1):
        reading.feed(event)
    reading.end()
    answer = whole_answer("chat" if path == CHAT else "completions", chunks, reading.usage)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]["content"] if path == CHAT else choice["logprobs"]["tokens"]
    assert len(logprobs) == TOKENS
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] if path == CHAT else choice["text"]
    if peer.fake is None:
        whole = {"stream": False, "stream_options": None, "logprobs": True if path == CHAT else 1}
        async with peer.http.post(peer.url + path, json=peer.body(path, **whole)) as response:
            own = await response.json()
        assert _without_nulls(choice) == _without_nulls(own["choices"][0]), "the engine's own whole answer"
        assert answer["usage"]["total_tokens"] == own["usage"]["total_tokens"]
        assert answer["object"] == own["object"]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_request_that_it_finds_wrong_is_a_4xx_in_the_openai_shape(peer: Peer, path: str) -> None:
    async with peer.http.post(peer.url + path, json=peer.body(path, min_tokens=TOKENS + 1)) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["message"]
    assert error["code"] == 400


def anonymous(event: bytes) -> bytes:
    """Return the event without what differs from call to call."""
    return re.sub(rb'"(id|created)":("[^"]*"|[0-9]+)', rb'"\1":0', event)


@pytest.mark.parametrize("usage", [False, True], ids=["", "running usage"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_token_ids_are_told_and_can_be_taken_out_without_a_trace(
    peer: Peer, path: str, usage: bool
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": usage}
    plain = await peer.stream(path, stream_options=options)
    told = await peer.stream(path, stream_options=options, return_token_ids=True)
    record, counted = Record(chat=path == CHAT), [0]
    progress = Progress(FixedClock(), lambda _, tokens: counted.append(tokens))
    reading = EventStream(progress, want_usage=True, record=record)
    passed = b"".join(map(reading.feed, told))
    reading.end()
    assert anonymous(passed) == anonymous(b"".join(plain))
    assert record.problem == ""
    assert len(record.transcript.output) == sum(counted) == reading.usage["completion_tokens"] == TOKENS
    assert len(record.transcript.prompt) == reading.usage["prompt_tokens"]
    assert all(record.find(event) > 0 for event in told[2:-3]), "so that the gateway need not parse them"
    assert b"".join(map(without_ids, plain)) == b"".join(plain), "there is nothing to take out"
    words = Detokenizer(peer.tokenizer, record.transcript.prompt)
    assert words.feed(record.transcript.output) == record.text


async def told_ids(peer: Peer, path: str, **fields: Any) -> tuple[list[int], list[int], str | None]:
    """Return the ids of the prompt, those of the output, and the finish reason."""
    record = Record(chat=path == CHAT)
    reading = EventStream(Progress(FixedClock()), record=record)
    for event in await peer.stream(path, return_token_ids=True, **fields):
        reading.feed(event)
    reading.end()
    return list(record.transcript.prompt), record.transcript.output, record.transcript.finish_reason


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_prompt_of_all_ids_so_far_brings_the_rest(peer: Peer, path: str) -> None:
    prompt, output, finish = await told_ids(peer, path)
    for cut in (1, 5, TOKENS - 1):
        again, rest, end = await told_ids(peer, TEXT, prompt=prompt + output[:cut], max_tokens=TOKENS - cut)
        assert again == prompt + output[:cut]
        assert (rest, end) == (output[cut:], finish)


@pytest.mark.parametrize("extra", [{"brownout_end_at": 0}, {"brownout_seed": 3, "brownout_temperature": 1.5}])
async def test_extras_are_keyed_by_absolute_position(peer: Peer, extra: dict[str, float]) -> None:
    prompt, greedy, _ = await told_ids(peer, TEXT)
    if "brownout_end_at" in extra:
        extra = {"brownout_end_at": len(prompt) + 8}
    _, output, finish = await told_ids(peer, TEXT, vllm_xargs=extra)
    assert output != greedy
    assert finish == ("stop" if "brownout_end_at" in extra else "length")
    cut = 5
    _, rest, end = await told_ids(
        peer, TEXT, prompt=prompt + output[:cut], max_tokens=TOKENS - cut, vllm_xargs=extra
    )
    assert (rest, end) == (output[cut:], finish)


async def test_headers_do_not_wait_for_the_first_token(peer: Peer) -> None:
    """So a short time-out on headers says whether the replica is there, however long its prefill takes."""
    gate = asyncio.Event()
    if peer.fake is not None:
        peer.fake.behaviour = Behaviour(first_token_gate=gate)
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    body = peer.body(CHAT, messages=[{"role": "user", "content": "why? " * 600}])
    async with peer.http.post(peer.url + CHAT, json=body) as response:
        headers_at = loop.time()
        loop.call_later(0.5, gate.set)
        await response.content.readany()
        token_at = loop.time()
    assert headers_at - sent_at < token_at - headers_at


async def test_leaving_a_stream_frees_the_engine(peer: Peer) -> None:
    if peer.fake is not None:
        peer.fake.behaviour = Behaviour(token_interval_s=0.01)
    await peer.until_running(0)
    async with peer.http.post(peer.url + CHAT, json=peer.body(CHAT, max_tokens=3000)) as response:
        await response.content.readany()
        await peer.until_running(1)
    await peer.until_running(0)


async def test_models_and_health_answer(peer: Peer) -> None:
    async with peer.http.get(f"{peer.url}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == [peer.model]
    async with peer.http.get(f"{peer.url}/health") as response:
        assert response.status == 200
