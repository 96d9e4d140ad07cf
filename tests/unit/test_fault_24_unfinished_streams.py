"""Fault 24: "A stream that ends without [DONE] or without a finish_reason counts as success in the load generator".

The gateway and the load generator are shown the same streams: neither may take an unfinished one for an answer.
Over sockets: ``tests/integration/test_gateway_faults.py`` and ``tests/integration/test_load_client.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaos.load.answer import Answer
from chaos.load.prompts import Ask
from cluster.gateway.sse import EventStream
from policies.errors import AttemptError
from policies.progress import Progress
from tests.fakes.policy_bench import FixedClock

ASKED = Ask("a question", max_tokens=2, stream=True)


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


USAGE = {"id": "x", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}}
DONE = "[DONE]"
WHOLE = [chunk("a"), chunk("b", "length"), USAGE, DONE]


def gateway_takes(events: list[Any]) -> bool:
    reading = EventStream(Progress(FixedClock()))
    try:
        for event in events:
            reading.feed(f"data: {_text(event)}\n\n".encode())
        reading.end()
    except AttemptError:
        return False
    return True


def load_generator_takes(events: list[Any]) -> bool:
    answer = Answer(status=200)
    for number, event in enumerate(events):
        answer.line(f"data: {_text(event)}\n".encode(), float(number))
        answer.line(b"\n", float(number))
    return answer.close(ASKED, False) == "ok"


def _text(event: Any) -> str:
    return event if isinstance(event, str) else json.dumps(event)


def test_a_finished_stream_is_taken_by_both() -> None:
    assert gateway_takes(WHOLE)
    assert load_generator_takes(WHOLE)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(WHOLE[:-1], id="without DONE"),
        pytest.param([chunk("a"), chunk("b"), USAGE, DONE], id="without finish_reason"),
        pytest.param([chunk("a"), chunk("b"), USAGE], id="without either"),
        pytest.param([chunk("a")], id="cut after a token"),
        pytest.param([DONE], id="nothing but DONE"),
        pytest.param([], id="nothing"),
        pytest.param([chunk("a"), chunk("b", "abort"), USAGE, DONE], id="aborted"),
        pytest.param(
            [chunk("a"), {"error": {"message": "dead", "code": 500}}, DONE], id="an error, then DONE"
        ),
    ],
)
def test_an_unfinished_one_is_taken_by_neither(events: list[Any]) -> None:
    assert not gateway_takes(events)
    assert not load_generator_takes(events)
