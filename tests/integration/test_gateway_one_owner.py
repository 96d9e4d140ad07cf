"""One owner of retries, from a client library to the replicas (fault 1), and one deadline (fault 3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import openai
import pytest

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour

MESSAGES: Any = [{"role": "user", "content": "say something"}]


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(3) as built:
        yield built


async def ask_with_library(made: Rig) -> None:
    """Ask as the official client does by itself: it retries twice."""
    client = made.openai(max_retries=2)
    await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4)


def asked(made: Rig) -> int:
    return sum(len(replica.seen) for replica in made.replicas)


async def test_a_client_that_retries_too_does_not_multiply_the_attempts(made: Rig) -> None:
    for replica in made.replicas:
        replica.behaviour = Behaviour(status=500)
    with pytest.raises(openai.InternalServerError) as caught:
        await ask_with_library(made)
    assert asked(made) == 3, "not nine"
    assert caught.value.response.headers[public.HEADER_SHOULD_RETRY] == "false"
    assert caught.value.response.headers[public.HEADER_ATTEMPTS] == "3"


async def test_where_the_gateway_does_not_retry_the_client_may(made: Rig) -> None:
    await made.profile("naive")
    for replica in made.replicas:
        replica.behaviour = Behaviour(status=500)
    with pytest.raises(openai.InternalServerError) as caught:
        await ask_with_library(made)
    assert asked(made) == 3
    assert public.HEADER_SHOULD_RETRY not in caught.value.response.headers


async def test_each_attempt_is_told_what_is_left_of_the_deadline(made: Rig) -> None:
    for replica in made.replicas:
        replica.script.append(Behaviour(status=503, retry_after="0.2"))
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2}
    url, headers = f"{made.url}/v1/chat/completions", {public.HEADER_DEADLINE: "20"}
    async with made.http.post(url, json=body, headers=headers) as response:
        await response.read()
    seen = [one for replica in made.replicas for one in replica.seen]
    left = sorted((float(one.headers[public.HEADER_DEADLINE]) for one in seen), reverse=True)
    assert len(left) >= 2
    assert 10 < left[0] <= 20
    assert all(before - after >= 0.19 for before, after in pairwise(left))
