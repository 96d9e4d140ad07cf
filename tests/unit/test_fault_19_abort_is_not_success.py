"""Fault 19: an aborted generation ends as 200 with ``finish_reason: "abort"`` and ``[DONE]``: it is not a success."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster import public
from cluster.gateway.record import Record
from cluster.gateway.sse import EventStream
from cluster.model.tokenizer import train, training_text
from policies.errors import ReplicaLost
from policies.progress import Progress
from tests.fakes.gateway import Rig, rig
from tests.fakes.policy_bench import FixedClock
from tests.fakes.replica import MODEL, Behaviour


def event(text: str, ids: list[int], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "token_ids": ids}
    return f"data: {json.dumps({'id': 'x', 'choices': [choice], 'prompt_token_ids': [1]})}\n\n".encode()


@pytest.mark.parametrize("reason", ["abort", "error"])
@pytest.mark.parametrize("kept", [True, False], ids=["tokens kept", "tokens not kept"])
def test_the_end_of_an_aborted_stream_is_a_loss_and_no_token_of_it_counts(reason: str, kept: bool) -> None:
    record = Record(chat=True) if kept else None
    reading = EventStream(Progress(FixedClock()), record=record)
    reading.feed(event("a", [5], None))
    with pytest.raises(ReplicaLost, match=reason):
        reading.feed(event("b", [6], reason) + b"data: [DONE]\n\n")
    if record is not None:
        assert record.transcript.output == [5]
        assert record.transcript.finish_reason is None


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(2, tokenizer=train(training_text(), 600)) as built:
        yield built


async def ask(made: Rig, **fields: Any) -> str:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 8, "stream": True, "temperature": 0, **fields}
    async with made.http.post(f"{made.url}/v1/completions", json=body) as response:
        return (await response.read()).decode()


async def test_an_aborted_stream_goes_on_elsewhere_or_says_that_it_cannot(made: Rig) -> None:
    whole = await ask(made)
    for replica in made.replicas:
        replica.behaviour = Behaviour(finish_reason="abort", token_interval_s=0.02)
    aborted = await ask(made, temperature=1.0)
    assert "[DONE]" not in aborted
    assert public.ERROR_NOT_RESUMABLE in aborted
    made.replicas[1].behaviour = Behaviour()
    for _ in range(2):
        resumed = await ask(made)
        assert resumed.endswith("data: [DONE]\n\n")
        assert "abort" not in resumed
        assert texts(resumed) == texts(whole)
    outcomes = [one["outcome"] for one in made.events("call_ended")]
    assert outcomes == ["ok", "failed", "ok", "ok"]


def texts(stream: str) -> list[str]:
    events = [json.loads(one[6:]) for one in stream.split("\n\n") if one.startswith("data: {")]
    return [choice["text"] for one in events for choice in one["choices"]]
