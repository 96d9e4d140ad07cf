"""Corners of a continuation that a real replica hardly ever shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.gateway.continuation import Continuation, ContinuedStream
from cluster.gateway.generation import Generation
from cluster.gateway.sse import EventStream
from cluster.model.tokenizer import train, training_text
from policies.call import Call
from policies.errors import ReplicaFailed
from policies.progress import Progress
from tests.fakes.policy_bench import FixedClock, call

TOKENIZER = train(training_text(), 600)
PROMPT = TOKENIZER.encode("The service").ids
IDS = TOKENIZER.encode(" has a long queue of calls").ids


class Client:
    def __init__(self) -> None:
        self.got = b""

    def opened(self, call: Call) -> None:
        """Not told here."""

    async def write(self, data: bytes) -> None:
        self.got += data


def event(ids: list[int] | None, text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": PROMPT, "token_ids": ids}
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n".encode()


def cut_after(ids: list[int], **asked: Any) -> tuple[Continuation, Client, Call]:
    """Return a continuation whose first stream has brought these ids and nothing more."""
    client = Client()
    continuation = Continuation(TOKENIZER, 4096, {})
    body = json.dumps({"model": "m", "prompt": "The service", "temperature": 0, **asked}).encode()
    generation = Generation("completions", body, True, True, 1, client, continuation=continuation)
    record, begun = continuation.begin(generation)
    reading = EventStream(Progress(FixedClock()), want_usage=True, record=record, begun=begun)
    for one in ids:
        reading.feed(event([one], TOKENIZER.decode([one])))
    return continuation, client, call(payload=generation, resumable=continuation)


async def test_every_token_is_there_but_not_the_finish() -> None:
    continuation, client, one = cut_after(IDS, max_tokens=len(IDS))
    assert continuation.refusal is None
    assert continuation.complete
    answer = await continuation.end(one)
    *events, done = client.got.decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    finish, usage = (json.loads(told[6:]) for told in events)
    assert finish["choices"][0]["finish_reason"] == "length"
    assert finish["choices"][0]["text"] == ""
    counted = {"prompt_tokens": len(PROMPT), "completion_tokens": len(IDS)}
    assert answer.usage == usage["usage"] == {**counted, "total_tokens": len(PROMPT) + len(IDS)}


def test_without_a_limit_a_completion_has_the_engines_default() -> None:
    continuation, _, one = cut_after(IDS[:3])
    assert continuation.refusal is None
    asked = json.loads(continuation.continued(one).payload.body)
    assert asked["max_tokens"] == 16 - 3
    assert asked["prompt"] == [*PROMPT, *IDS[:3]]


def test_before_the_first_token_nothing_can_be_continued() -> None:
    continuation, _, _ = cut_after([])
    assert continuation.tokens == 0
    assert continuation.refusal == "its tokens are not known"


def test_what_was_forgotten_is_not_continued() -> None:
    continuation, _, _ = cut_after(IDS)
    continuation.forget()
    assert continuation.tokens == 0
    assert continuation.refusal is not None


def test_an_attempt_that_is_overtaken_before_its_first_token_leaves_no_trace() -> None:
    continuation, _, one = cut_after(IDS[:2])
    record, _ = continuation.begin(one.payload)
    EventStream(Progress(FixedClock()), record=record).feed(b": nothing yet\n\n")
    assert continuation.tokens == 2


def test_a_replica_that_tells_no_ids_cannot_continue() -> None:
    continuation, _, one = cut_after(IDS[:3], max_tokens=9)
    assert continuation.refusal is None
    continuation.continued(one)
    rest = ContinuedStream(continuation, Progress(FixedClock()), {})
    with pytest.raises(ReplicaFailed, match="token ids"):
        rest.feed(event(None, "queue"))
    assert continuation.tokens == 3


@pytest.mark.parametrize(
    ("after", "said"),
    [(b'data: {"error":{"message":"broken","code":500}}\n\n', "broken"), (event(None, "x"), "token ids")],
)
def test_tokens_that_come_with_an_error_are_kept(after: bytes, said: str) -> None:
    continuation, _, one = cut_after(IDS[:3], max_tokens=9)
    assert continuation.refusal is None
    continuation.continued(one)
    rest = ContinuedStream(continuation, Progress(FixedClock()), {})
    out = rest.feed(event([IDS[3]], "") + after)
    assert TOKENIZER.decode([IDS[3]]) in out.decode()
    assert continuation.tokens == 4
    with pytest.raises(ReplicaFailed, match=said):
        rest.end()
