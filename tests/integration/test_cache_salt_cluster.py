"""Tenants do not share prefix caches in real vLLM: a prompt of before is a hit for its tenant, a miss for others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest

from cluster import public
from cluster.public import ClusterState

pytestmark = pytest.mark.cluster

WORDS = 400
"""Tokens of each prompt at least: several blocks of the cache, of whatever size these are."""
LEAST_HIT = 128
"""The largest block that vLLM has on a processor; a hit is of at least one."""


@dataclass
class Lab:
    """The running cluster."""

    state: ClusterState
    http: aiohttp.ClientSession

    async def _counted(self, label: str) -> tuple[float, float]:
        """Return the tokens that a replica's engine has looked up in its prefix cache, and those that it found."""
        async with self.http.get(f"{self.state.links_url}/replicas/{label}/metrics") as response:
            lines = (await response.text()).splitlines()

        def total(name: str) -> float:
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))

        return total("vllm:prefix_cache_queries_total"), total("vllm:prefix_cache_hits_total")

    async def ask(self, tenant: str, prompt: str, **more: str) -> tuple[str, float]:
        """Complete a prompt; return the replica that did, and the tokens of it that the engine found in its cache."""
        labels = [f"{public.REPLICA_LABEL_PREFIX}{number}" for number in range(self.state.replicas)]
        before = {label: await self._counted(label) for label in labels}
        body = {"model": self.state.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
        headers = {public.HEADER_TENANT: tenant}
        async with self.http.post(
            f"{self.state.base_url}/v1/completions", json=body, headers=headers
        ) as response:
            assert response.status == 200, await response.text()
            label = public.replica_label(response.headers[public.HEADER_REPLICA])
            tokens = (await response.json())["usage"]["prompt_tokens"]
        assert tokens > 2 * LEAST_HIT, "the prompt is longer than a block"
        async with asyncio.timeout(30):
            while True:
                queries, hits = await self._counted(label)
                if queries > before[label][0]:
                    return label, hits - before[label][1]
                await asyncio.sleep(0.1)


@pytest.fixture
async def lab(cluster: ClusterState) -> AsyncIterator[Lab]:
    async with aiohttp.ClientSession() as session:
        yield Lab(cluster, session)


def new_prompt() -> str:
    """Return a prompt that no cache has: it begins as no other does."""
    return f"{uuid.uuid4()} " + " ".join(f"queue{number % 7}" for number in range(WORDS))


async def everywhere(lab: Lab, tenant: str, prompt: str) -> None:
    """Ask until every replica has the prompt in its cache for that tenant."""
    seen: set[str] = set()
    async with asyncio.timeout(120):
        while len(seen) < lab.state.replicas:
            seen.add((await lab.ask(tenant, prompt))[0])


async def test_a_prompt_of_before_is_found_for_its_own_tenant_and_for_no_other(lab: Lab) -> None:
    prompt, blue, green = new_prompt(), f"blue-{uuid.uuid4()}", f"green-{uuid.uuid4()}"
    await everywhere(lab, blue, prompt)
    assert (await lab.ask(blue, prompt))[1] >= LEAST_HIT, "the same tenant has it from any replica's cache"
    assert (await lab.ask(green, prompt))[1] == 0, "another tenant has nothing of it"
    assert (await lab.ask(blue, prompt))[1] >= LEAST_HIT, "and it was there all the time"


async def test_no_tenant_reaches_anothers_prefixes_by_naming_a_salt(lab: Lab) -> None:
    prompt, blue, green = new_prompt(), f"blue-{uuid.uuid4()}", f"green-{uuid.uuid4()}"
    await everywhere(lab, blue, prompt)
    for salt in (blue, "default", ""):
        label, hits = await lab.ask(green, prompt, cache_salt=salt)
        assert hits == 0, f"cache_salt={salt!r} at {label}"
        green = f"green-{uuid.uuid4()}"
