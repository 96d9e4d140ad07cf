"""What holds for every stream: it may arrive in any pieces, and its text comes out as it went in."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.gateway.assemble import whole_answer
from cluster.gateway.sse import DONE, EventStream, is_plain_token
from policies.progress import Progress
from tests.fakes.policy_bench import FixedClock

texts = st.lists(st.text(max_size=12), min_size=1, max_size=12)
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def events_of(words: list[list[str]], *, ascii_only: bool) -> list[bytes]:
    """Return a chat stream with one choice for each list of words."""
    chunks: list[dict[str, Any]] = []
    for index in range(len(words)):
        opening = {"role": "assistant", "content": ""}
        chunks.append({"choices": [{"index": index, "delta": opening, "finish_reason": None}]})
    for index, spoken in enumerate(words):
        for number, word in enumerate(spoken):
            finish = "length" if number == len(spoken) - 1 else None
            chunks.append(
                {"choices": [{"index": index, "delta": {"content": word}, "finish_reason": finish}]}
            )
    chunks.append({"choices": [], "usage": USAGE})
    dumped = [json.dumps(one, separators=(",", ":"), ensure_ascii=ascii_only) for one in chunks]
    return [*(f"data: {one}\n\n".encode() for one in dumped), DONE]


@given(
    words=st.lists(texts, min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 60), max_size=200),
    raw=st.booleans(),
)
def test_however_the_bytes_arrive_they_leave_unchanged(
    words: list[list[str]], cuts: list[int], raw: bool
) -> None:
    events = events_of(words, ascii_only=not raw)
    data, expected = b"".join(events), b"".join([*events[:-2], DONE])
    reading = EventStream(Progress(FixedClock()), choices=len(words))
    out, at = [], 0
    for size in [*cuts, len(data)]:
        if at < len(data):
            out.append(reading.feed(data[at : at + size]))
            at += size
    reading.end()
    assert b"".join(out) == expected
    assert reading.usage == USAGE


@given(words=st.lists(texts, min_size=1, max_size=3), size=st.integers(1, 400))
def test_a_whole_answer_says_what_the_stream_said(words: list[list[str]], size: int) -> None:
    data = b"".join(events_of(words, ascii_only=False))
    chunks: list[dict[str, Any]] = []
    reading = EventStream(Progress(FixedClock()), choices=len(words), collect=chunks)
    for at in range(0, len(data), size):
        reading.feed(data[at : at + size])
    reading.end()
    answer = whole_answer("chat", chunks, reading.usage)
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        "".join(spoken) for spoken in words
    ]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(words)))


@given(text=st.text())
def test_no_text_makes_a_token_look_finished_or_the_end_look_plain(text: str) -> None:
    def event(finish: str | None) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
        return f"data: {json.dumps({'choices': [choice]}, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()

    assert is_plain_token(event(None))
    assert not is_plain_token(event("stop"))
