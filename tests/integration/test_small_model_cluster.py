"""The smaller model on a real cluster of its own: both answer, apart, and the ladder leads from one to the other."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import pytest

from cluster import public
from cluster.public import ClusterState
from cluster.served import served
from cluster.settings import Settings
from policies.ladder import SMALL_MODEL
from tests.fakes.second_cluster import local, run_dir_of, second_cluster

pytestmark = pytest.mark.cluster

UP_WITHIN_S = 300
PROMPT = "Why is the queue so long?"
CALLS = 60
OBJECTIVE_S = "0.5"
"""Objective for the first token: of that many calls at once on one replica, most would miss it."""


async def ask(
    session: aiohttp.ClientSession, url: str, model: str, prompt: str = PROMPT, **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Complete a prompt greedily; return status, body and headers."""
    named = {f"x-brownout-{name}": value for name, value in headers.items()}
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    async with session.post(f"{url}/v1/completions", json=body, headers=named) as response:
        return response.status, await response.json(), dict(response.headers)


async def links_of(session: aiohttp.ClientSession, state: ClusterState, kind: str) -> list[dict[str, Any]]:
    async with session.get(f"{state.links_url}/links") as response:
        return [link for link in (await response.json())["links"] if link["kind"] == kind]


async def cache_tokens(session: aiohttp.ClientSession, state: ClusterState, label: str) -> int:
    """Return what the engine itself says that its KV cache holds."""
    async with session.get(f"{state.links_url}/replicas/{label}/metrics") as response:
        text = await response.text()
    found = re.search(r'vllm:cache_config_info\{.*kv_cache_size_tokens="(\d+)"', text)
    assert found, f"{label} tells no size of its cache"
    return int(found.group(1))


async def look_around(state: ClusterState) -> None:
    """See that both models are served, apart from each other, and that overload leads to the smaller one."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        (full,) = await links_of(session, state, public.KIND_REPLICA)
        (small,) = await links_of(session, state, public.KIND_REPLICA_SMALL)
        assert (full["label"], small["label"]) == ("replica-0", "small-0")
        small_url = f"http://{small['listen']}{public.SMALL_PATH}"
        _, by_full, _ = await ask(session, f"http://{full['listen']}", public.MODEL_NAME)
        _, by_small, _ = await ask(session, small_url, public.SMALL_MODEL_NAME)
        assert by_full["usage"]["prompt_tokens"] == by_small["usage"]["prompt_tokens"]
        assert by_full["choices"][0]["text"] != by_small["choices"][0]["text"]
        status, _, _ = await ask(session, small_url, public.MODEL_NAME)
        assert status == 404, "the smaller model answers for the other one"
        settings = Settings(small_replicas=1)
        for label, size in (("replica-0", served(settings)), ("small-0", served(settings, "small"))):
            assert await cache_tokens(session, state, label) == size.kv_tokens

        answers = await asyncio.gather(
            *(ask(session, state.base_url, public.MODEL_NAME, priority="sheddable") for _ in range(CALLS))
        )
        degraded = [
            (body, headers)
            for status, body, headers in answers
            if status == 200 and headers.get(public.HEADER_RUNG) == SMALL_MODEL
        ]
        assert degraded, f"no call came down to the smaller model: {[status for status, _, _ in answers]}"
        for body, headers in degraded:
            assert headers[public.HEADER_REPLICA] == small["name"]
            whole = by_small["choices"][0]["text"]
            assert body["choices"][0]["text"], "nothing was generated"
            assert whole.startswith(body["choices"][0]["text"])


def test_both_models_are_served_and_overload_leads_to_the_smaller_one() -> None:
    with second_cluster(serves=True) as env:
        env |= {
            "BROWNOUT_REPLICAS": "1",
            "BROWNOUT_SMALL_REPLICAS": "1",
            "BROWNOUT_TTFT_OBJECTIVE_S": OBJECTIVE_S,
        }
        try:
            code, said = local("up", env, UP_WITHIN_S)
            assert code == 0, said
            state = ClusterState.load(run_dir_of(env))
            assert state is not None
            assert (state.replicas, state.small_replicas, state.small_model) == (1, 1, "brownout-tiny-small")
            _, said = local("status", env)
            assert "1 x brownout-tiny, 1 x brownout-tiny-small" in said
            asyncio.run(look_around(state))
        finally:
            code, said = local("down", env)
        assert code == 0, said
