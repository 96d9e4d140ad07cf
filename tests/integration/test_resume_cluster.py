"""The real engine, cut three hundred times: every answer is, token by token, the one that nobody disturbed.

Each attempt has a connection of its own, so a link that closes its connections after so many bytes cuts every
attempt that goes through it, wherever in an event that is, and the continuation too if it gets as far. Twenty-four
calls run at a time, over three replicas with prefix caching.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import pytest

from cluster import public
from cluster.gateway.detokenize import Detokenizer
from cluster.gateway.tokens import TokenCounter, load
from cluster.public import ClusterState
from cluster.settings import current
from tests.fakes.live import look_at, observed

pytestmark = pytest.mark.cluster

CUTS: Final = 300
AT_A_TIME: Final = 24
CUT_AFTER_BYTES: Final = (4000, 14000)
"""Ten to fifty tokens; the first event of every attempt tells the ids of its prompt."""
SEED: Final = int(os.environ.get("RESUME_SEED", "20260730"))
"""Of the requests and of where they are cut; RESUME_SEED tries others."""
_NEEDED: Final = {"retry", "resume", "timeouts", "least_work"}
_TEXT: Final = "queue token replica élève Größe über 語彙 — « service » link météo ñandú budget stream Ωmega"
_WORDS: Final = _TEXT.split()
_SHARED: Final = " ".join(_WORDS * 5)
"""Longer than a block of the prefix cache, and the beginning of a part of the prompts."""


@dataclass
class Got:
    """What a client has got of one answer."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    resumes: int = 0
    error: Any = None
    done: bool = False
    names: set[str] = field(default_factory=set)

    def take(self, chunk: dict[str, Any]) -> None:
        """Add one event of a stream, or a whole answer."""
        self.error = chunk.get("error", self.error)
        if "id" in chunk:
            self.names.add(chunk["id"])
        self.usage = chunk.get("usage") or self.usage
        self.resumes = (chunk.get("brownout") or {}).get("resumes", self.resumes)
        self.prompt_ids = chunk.get("prompt_token_ids") or self.prompt_ids
        for choice in chunk.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            self.text += said.get("content") or ""
            self.ids += choice.get("token_ids") or []
            self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
            self.finish = choice.get("finish_reason") or self.finish


@dataclass
class Lab:
    """The cluster, its links, and a seeded maker of requests."""

    state: ClusterState
    http: aiohttp.ClientSession
    links: list[str]
    counter: TokenCounter
    rng: random.Random

    async def profile(self, **change: Any) -> None:
        async with self.http.put(f"{self.state.admin_url}/admin/profile", json=change) as response:
            assert response.status == 200, await response.text()

    async def cut_after(self, sizes: list[int] | None) -> None:
        """Let each replica's link close its connections after so many bytes; None lets them be."""
        for number, link in enumerate(self.links):
            url = f"{self.state.toxiproxy_url}/proxies/{link}/toxics"
            async with self.http.delete(f"{url}/cut") as response:
                assert response.status in (204, 404)
            if sizes is not None:
                toxic = {"name": "cut", "type": "limit_data", "stream": "downstream"}
                body = {**toxic, "attributes": {"bytes": sizes[number]}}
                async with self.http.post(url, json=body) as response:
                    assert response.status == 200, await response.text()

    def request(self) -> tuple[str, dict[str, Any]]:
        """Return a path and a body: either API, streamed or not, greedy or seeded, ended by force or by length."""
        rng = self.rng
        text = " ".join(rng.choices(_WORDS, k=rng.randrange(4, 40)))
        if rng.random() < 0.4:
            text = f"{_SHARED} {text}"
        body: dict[str, Any] = {
            "model": self.state.model,
            "max_tokens": rng.randrange(24, 80),
            "temperature": 0,
            "return_token_ids": True,
            "stream": rng.random() < 0.75,
        }
        chat = rng.random() < 0.5
        if chat:
            body["messages"] = [{"role": "user", "content": text}]
            tokens = self.counter.chat(body["messages"]).tokens
        else:
            body["prompt"] = text
            tokens = self.counter.text(text).tokens
        if rng.random() < 0.3:
            body["vllm_xargs"] = {"brownout_end_at": tokens + rng.randrange(8, body["max_tokens"])}
        if rng.random() < 0.3:
            body.update(
                seed=rng.randrange(1000),
                temperature=rng.choice([0.5, 1.0, 1.3]),
                top_p=rng.choice([0.8, 1.0]),
            )
        if rng.random() < 0.2:
            body["logit_bias"] = {str(rng.randrange(10, 2000)): rng.choice([-20, 3]) for _ in range(5)}
        if rng.random() < 0.2:
            body["skip_special_tokens"] = False
        if body["stream"] and rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
        return ("/v1/chat/completions" if chat else "/v1/completions"), body

    async def ask(self, path: str, body: dict[str, Any], name: str) -> Got:
        got, headers = Got(), {public.HEADER_REQUEST_ID: name}
        async with self.http.post(f"{self.state.gateway_url}{path}", json=body, headers=headers) as response:
            if not body["stream"]:
                got.take(await response.json())
                got.done = response.status == 200
                return got
            async for line in response.content:
                if line.startswith(b"data: {"):
                    got.take(json.loads(line[6:]))
                got.done = got.done or line == b"data: [DONE]\n"
        return got

    async def resumed(self) -> dict[str, list[int]]:
        """Return after how many tokens each call was continued."""
        at: dict[str, list[int]] = {}
        async with self.http.get(f"{self.state.admin_url}/admin/events?after=0") as response:
            for event in (await response.json())["events"]:
                if event["event"] == "resumed":
                    at.setdefault(event["request_id"], []).append(event["at_token"])
        return at


@pytest.fixture
async def lab(cluster: ClusterState) -> AsyncIterator[Lab]:
    counter = load(current())
    assert counter.exact
    async with look_at(cluster) as live:
        links = [replica.link for replica in await live.whole()]
        made = Lab(cluster, live.session, links, counter, random.Random(SEED))
        off = [name for name in public.POLICIES if name not in _NEEDED]
        await made.profile(profile="resilient", without=off, overrides={"max_resumes": 1000})
        try:
            yield made
        finally:
            await made.cut_after(None)
            await made.profile(profile="resilient")


async def test_three_hundred_cuts_change_nothing(lab: Lab) -> None:
    cuts = calls = several = batches = 0
    ends: Counter[str | None] = Counter()
    truths: dict[str, Got] = {}
    while cuts < CUTS:
        batches += 1
        requests = [lab.request() for _ in range(AT_A_TIME)]
        names = [f"cut-{batches}-{number}" for number in range(AT_A_TIME)]
        await lab.cut_after(None)
        whole = await asyncio.gather(
            *(lab.ask(*request, f"{name}-whole") for request, name in zip(requests, names, strict=True))
        )
        await lab.cut_after([lab.rng.randrange(*CUT_AFTER_BYTES) for _ in lab.links])
        cut = await asyncio.gather(
            *(lab.ask(*request, name) for request, name in zip(requests, names, strict=True))
        )
        for (_, body), name, truth, got in zip(requests, names, whole, cut, strict=True):
            assert truth.error is None, (truth.error, body)
            assert truth.done
            assert got.error is None, (got.error, body)
            assert got.ids == truth.ids, (body, got.resumes)
            assert got.text == truth.text, (body, got.resumes)
            assert got.prompt_ids == truth.prompt_ids
            assert (got.finish, got.done) == (truth.finish, True)
            assert got.usage == truth.usage
            assert len(got.names) == 1
            assert truth.ids
            assert truth.resumes == 0
            truths[name] = truth
            cuts += got.resumes
            several += got.resumes > 1
            ends[got.finish] += 1
        calls += AT_A_TIME
    at = {name: tokens for name, tokens in (await lab.resumed()).items() if name in truths}
    positions = Counter(token for tokens in at.values() for token in tokens)
    assert sum(positions.values()) == cuts
    inside = sum(_inside_letters(lab, truths[name], tokens) for name, tokens in at.items())
    print(
        f"\n{cuts} cuts of {len(at)} of {calls} answers in {batches} batches, {several} answers several times, "
        f"at {len(positions)} different positions, {inside} inside a letter; finish reasons {dict(ends)}: "
        "all identical in text and token ids"
    )
    assert several > 20
    assert len(positions) > 20
    assert inside > 3, "some letters were cut in two"
    assert ends["stop"] > 10


def _inside_letters(lab: Lab, truth: Got, cuts: list[int]) -> int:
    """Return how many of the cuts of an answer lie between the two tokens of one letter."""
    words = Detokenizer(lab.counter.tokenizer, truth.prompt_ids)
    texts = [words.feed([one]) for one in truth.ids]
    return sum(texts[token - 1] == "" for token in cuts)


async def test_a_stream_whose_engine_is_killed_goes_on_elsewhere(lab: Lab) -> None:
    """The whole way: the process is gone, not just its connection."""
    path, body = (
        "/v1/chat/completions",
        {
            "model": lab.state.model,
            "messages": [{"role": "user", "content": _SHARED}],
            "max_tokens": 120,
            "temperature": 0,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    await lab.profile(profile="resilient")
    truth = await lab.ask(path, body, "kill-whole")
    async with look_at(lab.state) as live:
        asking = asyncio.ensure_future(lab.ask(path, body, "kill"))
        found: dict[str, Any] = {}

        async def streams() -> bool:
            async with lab.http.get(f"{lab.state.admin_url}/admin/inflight") as response:
                found.update(await response.json())
            return [one["phase"] for one in found["attempts"]] == ["streaming"]

        await observed("the call streams", streams)
        await asyncio.sleep(1.0)
        victim = next(one for one in await live.replicas() if one.link == found["attempts"][0]["replica"])
        victim.engine_core().kill()
        got = await asking
        assert (got.ids, got.text, got.finish, got.usage) == (
            truth.ids,
            truth.text,
            truth.finish,
            truth.usage,
        )
        assert got.resumes == 1
        await live.whole(without=victim.link)
