"""Refusals on the wire, read by the official client and by one that knows problem documents."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from cluster import public
from policies.call import Call
from policies.errors import CallRefused, NoReplica, Overloaded, QueueFull, QuotaExceeded
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL

BODY = {"model": MODEL, "prompt": "x", "max_tokens": 2}


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(1) as built:
        yield built


class Refusing:
    """In place of the pipeline: refuses the first calls, then lets everything through."""

    def __init__(self, made: Rig, *refusals: CallRefused) -> None:
        self._inner = made.gateway.pipeline.handle
        self._refusals = list(refusals)
        self.asked = 0
        made.gateway.pipeline = replace(made.gateway.pipeline, handle=self)

    async def __call__(self, call: Call, /) -> Any:
        self.asked += 1
        if self._refusals:
            raise self._refusals.pop(0)
        return await self._inner(call)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_a_problem_document(made: Rig, stream: bool) -> None:
    Refusing(made, Overloaded("late", retry_after_s=2.4, predicted_s=9.0))
    async with made.http.post(f"{made.url}/v1/completions", json={**BODY, "stream": stream}) as response:
        assert (response.status, response.content_type) == (503, "application/problem+json")
        assert response.headers["retry-after"] == "3"
        assert response.headers["retry-after-ms"] == "2400"
        assert response.headers[public.HEADER_SHOULD_RETRY] == "false"
        assert response.headers[public.HEADER_REQUEST_ID]
        body = await response.json(content_type="application/problem+json")
    assert body["type"] == "urn:brownout:problem:overloaded"
    assert (body["status"], body["detail"], body["retry_after_s"]) == (503, "late", 2.4)
    assert body["error"]["type"] == public.ERROR_OVERLOADED
    assert made.replicas[0].seen == []


async def test_the_official_client_reads_a_quota_as_a_rate_limit(made: Rig) -> None:
    Refusing(made, QuotaExceeded("tenant a has used its share", retry_after_s=1.5))
    with pytest.raises(openai.RateLimitError) as caught:
        await made.openai().completions.create(**BODY)
    error = caught.value
    assert error.status_code == 429
    assert error.type == public.ERROR_QUOTA
    assert error.code == "quota"
    assert "tenant a has used its share" in str(error)


async def test_the_official_client_reads_lost_capacity_as_the_services_fault(made: Rig) -> None:
    Refusing(made, QueueFull("100 calls wait", retry_after_s=1.5))
    with pytest.raises(openai.InternalServerError) as caught:
        await made.openai().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=2, stream=True
        )
    assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
    assert caught.value.type == public.ERROR_OVERLOADED


async def test_the_official_client_does_not_come_back_to_an_overloaded_service(made: Rig) -> None:
    refusing = Refusing(made, *(QueueFull("full", retry_after_s=0.01) for _ in range(5)))
    with pytest.raises(openai.InternalServerError):
        await made.openai(max_retries=3).completions.create(**BODY)
    assert refusing.asked == 1


async def test_the_official_client_comes_back_after_the_time_named_when_that_is_of_use(made: Rig) -> None:
    refusing = Refusing(made, NoReplica("nobody", retry_after_s=0.3))
    began_at = time.monotonic()
    answer = await made.openai(max_retries=3).completions.create(**BODY)
    assert answer.choices[0].finish_reason == "length"
    assert refusing.asked == 2
    assert time.monotonic() - began_at >= 0.3, "not before the gateway said"


async def test_refusals_are_counted_by_reason_once_a_call(made: Rig) -> None:
    Refusing(
        made,
        QuotaExceeded("a", retry_after_s=1),
        QueueFull("b", retry_after_s=1),
        QueueFull("c", retry_after_s=1),
    )
    for _ in range(4):
        async with made.http.post(f"{made.url}/v1/completions", json=BODY):
            pass
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        text = await response.text()
    counts = {
        line.split('"')[1]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith(public.METRIC_REFUSED + "{")
    }
    assert {reason: count for reason, count in counts.items() if count} == {"quota": 1.0, "queue_full": 2.0}
