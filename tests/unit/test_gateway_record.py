"""Taking token events apart: what is kept of them, and that the client sees none of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.gateway.record import Record, without_ids
from cluster.gateway.sse import EventStream
from policies.progress import Progress
from tests.fakes.policy_bench import FixedClock

TEXTS = [" a", "", ' "token_ids":[7]', '\\"token_ids\\":[8],', "\n\n", "ü", "語", "\x01\x7f\u2028", "}", "x"]
IDS = [[5], [6], [7, 8], [9], [1], [2], [3], [4], [10], [11, 12, 13]]


def chunk(chat: bool, number: int, *, told: bool, finish: str | None = None) -> dict[str, Any]:
    """One event as vLLM 0.32 writes it."""
    choice: dict[str, Any] = {"index": 0}
    choice.update({"delta": {"content": TEXTS[number]}} if chat else {"text": TEXTS[number]})
    choice.update(logprobs=None, finish_reason=finish)
    if finish or not chat:
        choice["stop_reason"] = None
    if not chat:
        choice["prompt_token_ids"] = [1, 2, 3] if told and number == 0 else None
    choice["token_ids"] = IDS[number] if told else None
    return {"id": "x", "object": "o", "created": 1, "model": 'm"odel', "choices": [choice]}


def stream(chat: bool, *, told: bool) -> list[bytes]:
    events = []
    if chat:
        opening = chunk(chat, 0, told=False)
        opening["choices"][0] = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "finish_reason": None,
        }
        opening.update(prompt_token_ids=[1, 2, 3] if told else None, prompt_text=None)
        events.append(opening)
    last = len(TEXTS) - 1
    events += [chunk(chat, n, told=told, finish="length" if n == last else None) for n in range(len(TEXTS))]
    usage = {"prompt_tokens": 3, "total_tokens": 17, "completion_tokens": 14}
    events.append({**chunk(chat, 0, told=False), "choices": [], "usage": usage})
    texts = [json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events]
    return [f"data: {text}\n\n".encode() for text in (*texts, "[DONE]")]


@pytest.mark.parametrize("size", [None, 1, 7, 100, 1000])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_the_client_gets_the_bytes_that_it_would_have_got_and_ids_and_text_are_kept(
    chat: bool, size: int | None
) -> None:
    counted = []
    record = Record(chat=chat)
    reading = EventStream(
        Progress(FixedClock(), lambda _, tokens: counted.append(tokens)), want_usage=True, record=record
    )
    events = stream(chat, told=True)
    whole = b"".join(events)
    pieces = events if size is None else [whole[at : at + size] for at in range(0, len(whole), size)]
    out = b"".join(reading.feed(piece) for piece in pieces)
    reading.end()
    assert out == b"".join(stream(chat, told=False))
    assert record.transcript.prompt == [1, 2, 3]
    assert record.transcript.output == [one for ids in IDS for one in ids]
    assert record.text == "".join(TEXTS)
    assert record.transcript.finish_reason == "length"
    assert record.problem == ""
    assert sum(counted) == sum(map(len, IDS))
    assert record.head == {"id": "x", "object": "o", "created": 1, "model": 'm"odel'}


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_a_client_that_asked_for_ids_gets_them(chat: bool) -> None:
    reading = EventStream(Progress(FixedClock()), want_usage=True, record=Record(chat=chat, shows_ids=True))
    events = stream(chat, told=True)
    assert b"".join(map(reading.feed, events)) == b"".join(events)


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_nearly_every_token_is_taken_apart_without_parsing(chat: bool) -> None:
    record = Record(chat=chat)
    reading = EventStream(Progress(FixedClock()), record=record)
    events = stream(chat, told=True)
    first = 2 if chat else 1
    for event in events[:first]:
        reading.feed(event)
    assert all(record.find(event) > 0 for event in events[first:-3])
    assert record.find(events[-3]) < 0, "the finish is more than a token"


def test_generated_text_that_looks_like_ids_is_left_alone() -> None:
    text = json.dumps(
        {"text": '"token_ids":[1,2] \\"token_ids\\":[3]', "token_ids": [4], "prompt_token_ids": [5, 6]}
    )
    emptied = json.loads(without_ids(text.encode()))
    assert emptied == {
        "text": '"token_ids":[1,2] \\"token_ids\\":[3]',
        "token_ids": None,
        "prompt_token_ids": None,
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda choice: choice.pop("token_ids"),
        lambda choice: choice["delta"].update(reasoning="hm"),
        lambda choice: choice["delta"].update(tool_calls=[{"index": 0}]),
        lambda choice: choice.update(delta="text"),
    ],
    ids=["no ids", "reasoning", "tools", "no object"],
)
def test_what_brings_something_else_than_text_cannot_be_gone_on_from(spoil: Any) -> None:
    record = Record(chat=True)
    reading = EventStream(Progress(FixedClock()), record=record)
    events = stream(True, told=True)
    strange = json.loads(events[3][6:])
    spoil(strange["choices"][0])
    for event in (*events[:3], f"data: {json.dumps(strange)}\n\n".encode()):
        reading.feed(event)
    assert record.problem


def test_ids_that_are_not_told_at_all_are_a_problem_and_the_stream_still_passes() -> None:
    record = Record(chat=True)
    reading = EventStream(Progress(FixedClock()), want_usage=True, record=record)
    events = stream(True, told=False)
    assert b"".join(map(reading.feed, events)) == b"".join(events)
    assert record.problem


@pytest.mark.parametrize("want_usage", [True, False])
def test_the_last_event_tells_how_the_call_was_answered(want_usage: bool) -> None:
    reading = EventStream(Progress(FixedClock()), want_usage=want_usage, note={"rung": "shorter"})
    *_, last, done = b"".join(map(reading.feed, stream(True, told=False))).split(b"\n\n")[:-1]
    assert done == b"data: [DONE]"
    told = json.loads(last[6:])
    assert told["brownout"] == {"rung": "shorter"}
    assert bool(told["choices"]) is not want_usage


def test_tokens_that_come_with_an_error_are_passed_on_before_it() -> None:
    """They are in the record, so the continuation will not bring them again."""
    record = Record(chat=True)
    reading = EventStream(Progress(FixedClock()), record=record)
    events = stream(True, told=True)
    error = b'data: {"error":{"message":"broken","code":500}}\n\n'
    out = reading.feed(b"".join((*events[:3], error)))
    assert out == b"".join(stream(True, told=False)[:3])
    assert reading.failure is not None
    assert record.transcript.output == IDS[0] + IDS[1]
