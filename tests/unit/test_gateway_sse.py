"""Reading a replica's stream: what is passed on, what is kept back, and which ends are no proper end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.gateway.sse import DONE, EventStream, is_plain_token
from policies.errors import AttemptError, CallRejected, ReplicaBusy, ReplicaFailed, ReplicaLost
from policies.progress import Progress, Reached
from tests.fakes.policy_bench import FixedClock

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chat(content: str | None = None, *, finish: str | None = None, index: int = 0, **delta: Any) -> bytes:
    said = delta if content is None else {"content": content, **delta}
    return sse({"id": "x", "choices": [{"index": index, "delta": said, "finish_reason": finish}]})


OPENING = chat("", role="assistant")
USAGE_EVENT = sse({"id": "x", "choices": [], "usage": USAGE})


def stream(**options: Any) -> EventStream:
    return EventStream(Progress(FixedClock()), **options)


def test_a_stream_passes_through_byte_by_byte_but_for_the_usage_nobody_asked_for() -> None:
    events = [OPENING, chat("a"), chat('"finish_reason":"stop"'), chat("b", finish="length")]
    reading = stream()
    out = b"".join(reading.feed(event) for event in [*events, USAGE_EVENT, DONE])
    reading.end()
    assert out == b"".join([*events, DONE])
    assert reading.usage == USAGE


def test_usage_is_passed_on_when_it_was_asked_for() -> None:
    reading = stream(want_usage=True)
    events = [OPENING, chat("a", finish="stop"), USAGE_EVENT, DONE]
    assert b"".join(map(reading.feed, events)) == b"".join(events)


def test_the_opening_event_is_held_until_something_was_generated() -> None:
    """A retry must still be possible after it: it says nothing yet."""
    reading = stream()
    assert reading.feed(OPENING) == b""
    assert not reading.first_token_seen
    assert reading.feed(chat("a")) == OPENING + chat("a")
    assert reading.first_token_seen


def test_a_token_without_text_is_a_token() -> None:
    """Half a multi-byte character has no text yet, but the replica has begun."""
    reading = stream()
    reading.feed(OPENING)
    assert reading.feed(chat("")) == OPENING + chat("")


@pytest.mark.parametrize(
    "delta",
    [{"tool_calls": [{"index": 0}]}, {"reasoning": "hm"}, {"content": "a"}, {"refusal": "no"}],
)
def test_an_opening_event_that_brings_something_is_a_token(delta: dict[str, Any]) -> None:
    reading = stream()
    event = sse({"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]})
    assert reading.feed(event) == event


def test_progress_counts_the_tokens() -> None:
    counted: list[tuple[Reached, int]] = []
    reading = EventStream(Progress(FixedClock(), lambda reached, tokens: counted.append((reached, tokens))))
    for event in [OPENING, chat("a"), chat("b"), chat("c") + chat("d", finish="stop")]:
        reading.feed(event)
    assert [tokens for _, tokens in counted] == [1, 1, 1, 1]
    assert counted[0][0] is Reached.FIRST_TOKEN
    assert counted[-1][0] is Reached.MID_STREAM


def test_generated_text_cannot_look_like_the_end_of_its_event() -> None:
    text = '{"finish_reason":null} "finish_reason":"stop"\n\ndata: [DONE]\n\n'
    event = chat(text)
    assert is_plain_token(event)
    assert is_plain_token(chat('","finish_reason":"stop",'))
    reading = stream()
    assert reading.feed(chat("a")) + reading.feed(event) == chat("a") + event
    assert not reading.done


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([OPENING, chat("a")], ReplicaLost),
        ([], ReplicaLost),
        ([chat("a", finish="stop")], ReplicaLost),
        ([chat("a"), DONE], ReplicaLost),
        ([chat("a", finish="abort"), DONE], ReplicaLost),
        ([chat("a"), chat("", finish="abort"), DONE], ReplicaLost),
        ([chat("a", finish="error"), DONE], ReplicaLost),
        ([chat("a"), sse({"error": {"message": "dead", "code": 500}}), DONE], ReplicaFailed),
        ([sse({"error": {"message": "full", "code": 503}}), DONE], ReplicaBusy),
        ([sse({"error": {"message": "bad", "code": 400}}), DONE], CallRejected),
        ([sse({"error": "text"}), DONE], ReplicaFailed),
        ([b"data: not json\n\n"], ReplicaFailed),
        ([b"data: [1, 2]\n\n"], ReplicaFailed),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], ReplicaFailed),
        ([b"<html>nginx</html>\n\n"], ReplicaLost),
        ([sse({"choices": 7})], ReplicaFailed),
        ([sse({"choices": [7]})], ReplicaFailed),
    ],
)
def test_an_improper_end_is_an_error(events: list[bytes], kind: type[AttemptError]) -> None:
    reading = stream()
    with pytest.raises(kind):
        for event in events:
            reading.feed(event)
        reading.end()


def test_every_choice_must_come_to_its_end() -> None:
    both = [chat("a", finish="stop", index=0), chat("b", finish="stop", index=1)]
    complete = stream(choices=2)
    for event in [*both, DONE]:
        complete.feed(event)
    complete.end()
    with pytest.raises(ReplicaLost, match="finish_reason"):
        cut = stream(choices=2)
        for event in [both[0], DONE]:
            cut.feed(event)


def test_an_event_with_several_choices_is_plain_only_if_none_of_them_is_finished() -> None:
    def both(first: str | None, second: str | None) -> bytes:
        delta = {"content": "a"}
        choices = [{"index": n, "delta": delta, "finish_reason": f} for n, f in enumerate((first, second))]
        return sse({"choices": choices})

    assert is_plain_token(both(None, None))
    reading = stream(choices=2)
    for event in [both(None, None), both("stop", None), chat("b", finish="stop", index=1), DONE]:
        assert reading.feed(event) == event
    reading.end()


def test_an_error_says_how_far_the_attempt_had_got() -> None:
    for events, reached in (
        ([OPENING], Reached.HEADERS),
        ([OPENING, chat("a")], Reached.FIRST_TOKEN),
        ([chat("a"), chat("b")], Reached.MID_STREAM),
    ):
        progress = Progress(FixedClock())
        progress.headers()
        reading = EventStream(progress)
        for event in events:
            reading.feed(event)
        with pytest.raises(ReplicaLost) as caught:
            reading.end()
        assert caught.value.reached is reached


def test_comments_and_carriage_returns_are_understood() -> None:
    reading = stream()
    assert reading.feed(b": ping\n\n") == b""
    assert reading.feed(chat("a").replace(b"\n\n", b"\r\n\r\n")) == chat("a")
    assert reading.feed(b": ping\n\n") == b": ping\n\n"
    reading.feed(chat("b", finish="stop") + DONE)
    reading.end()


def test_an_event_without_end_is_not_kept_for_ever() -> None:
    reading = stream()
    with pytest.raises(ReplicaFailed, match="does not end"):
        for _ in range(40):
            reading.feed(b"data: " + b"x" * 2**20)


def test_a_whole_answer_is_collected_and_nothing_is_passed_on() -> None:
    chunks: list[dict[str, Any]] = []
    reading = stream(collect=chunks)
    out = b"".join(map(reading.feed, [OPENING, chat("a"), chat("b", finish="stop"), USAGE_EVENT, DONE]))
    assert len(chunks) == 4
    assert out == b""
    assert reading.usage == USAGE


def test_what_came_before_an_error_is_passed_on_once_the_stream_has_begun() -> None:
    error = sse({"error": {"message": "dead", "code": 500}})
    begun = stream()
    begun.feed(chat("a"))
    assert begun.feed(chat("b") + error) == chat("b")
    with pytest.raises(ReplicaFailed):
        begun.end()
    fresh = stream()
    with pytest.raises(ReplicaFailed):
        fresh.feed(chat("a") + error)  # nothing was delivered yet: it may be tried again
