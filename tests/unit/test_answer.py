"""What makes an answer complete: pure lines in, an outcome out."""

from __future__ import annotations

import json

import pytest

from chaos.load.answer import Answer
from chaos.load.prompts import Ask

STREAM = Ask("a question", max_tokens=3, stream=True)
WHOLE = Ask("a question", max_tokens=3, stream=False)
TOOL = Ask("a question", max_tokens=3, stream=True, tool_symbol="ETH")


def chunk(text: str = "", finish: str | None = None, **extra) -> dict:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}], **extra}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
COMPLETE = [chunk("a"), chunk(" b"), chunk(" c", "length"), USAGE, "[DONE]"]


def streamed(
    events: list, asked: Ask = STREAM, status: int = 200, late: bool = False, **seen
) -> tuple[Answer, str]:
    answer = Answer(status=status, **seen)
    for number, event in enumerate(events):
        text = event if isinstance(event, str) else json.dumps(event)
        answer.line(f"data: {text}\n".encode(), float(number))
        answer.line(b"\n", float(number))
    return answer, answer.close(asked, late)


def test_a_complete_stream_is_ok() -> None:
    answer, outcome = streamed(COMPLETE)
    assert outcome == "ok"
    assert (answer.output_tokens, answer.prompt_tokens, answer.finish_reason, answer.done) == (
        3,
        9,
        "length",
        True,
    )
    assert answer.token_at == [0.0, 1.0, 2.0]
    assert len(answer.text_sha) == 16


@pytest.mark.parametrize(
    ("events", "error_type"),
    [
        pytest.param(COMPLETE[:-1], "cut", id="no DONE"),
        pytest.param(COMPLETE[:2], "cut", id="cut in the middle"),
        pytest.param([], "cut", id="nothing at all"),
        pytest.param([chunk("a"), chunk(" b", "abort"), USAGE, "[DONE]"], "abort", id="aborted engine"),
        pytest.param([chunk("a"), USAGE, "[DONE]"], "no_finish_reason", id="no finish_reason"),
        pytest.param([chunk("a", "length"), "[DONE]"], "no_usage", id="no usage"),
        pytest.param(
            [chunk("a", "length"), {"choices": [], "usage": {"completion_tokens": 2}}, "[DONE]"],
            "wrong_length",
            id="too short for its finish_reason",
        ),
        pytest.param(
            [chunk("a", "stop"), {"choices": [], "usage": {"completion_tokens": 4}}, "[DONE]"],
            "wrong_length",
            id="longer than asked",
        ),
        pytest.param([chunk("a"), *COMPLETE], "wrong_length", id="a token twice"),
        pytest.param(
            [chunk("a"), {"error": {"type": "upstream_lost", "message": "gone"}}],
            "upstream_lost",
            id="error event",
        ),
        pytest.param(
            [*COMPLETE[:-1], {"error": {"type": "timeout"}}, "[DONE]"],
            "timeout",
            id="error event before DONE",
        ),
        pytest.param([chunk("a"), "{half"], "malformed", id="not JSON"),
        pytest.param([chunk("a"), "[1]"], "malformed", id="not an object"),
    ],
)
def test_an_incomplete_stream_failed_whatever_its_status(events: list, error_type: str) -> None:
    answer, outcome = streamed(events)
    assert outcome == "failed"
    assert answer.error_type == error_type


def test_a_stop_before_the_asked_length_is_complete() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    assert streamed([chunk("a"), chunk(" b", "stop"), usage, "[DONE]"])[1] == "ok"


def test_the_deadline_makes_it_late_whatever_else_was_seen() -> None:
    answer, outcome = streamed(COMPLETE[:2], late=True)
    assert outcome == "late"
    assert answer.error_type == "late"


def test_an_answer_without_the_optional_tool_is_degraded() -> None:
    assert streamed(COMPLETE, TOOL, tool="deadline")[1] == "degraded"
    assert streamed(COMPLETE, TOOL, tool="error")[1] == "degraded"
    assert streamed(COMPLETE, TOOL, tool="ok")[1] == "ok"
    assert streamed(COMPLETE[:-1], TOOL, tool="deadline")[1] == "failed"


@pytest.mark.parametrize(
    ("status", "retry_after", "outcome"),
    [
        (503, True, "refused"),
        (429, False, "refused"),
        (503, False, "failed"),
        (502, True, "failed"),
        (400, False, "failed"),
    ],
)
def test_a_refusal_says_when_to_come_back_and_anything_else_failed(
    status: int, retry_after: bool, outcome: str
) -> None:
    answer = Answer(status=status, retry_after=retry_after)
    answer.body(b'{"error": {"type": "overloaded", "message": "busy"}}')
    assert answer.close(STREAM, late=False) == outcome
    assert answer.error_type == "overloaded"


def test_an_error_body_that_is_not_json_keeps_its_status() -> None:
    answer = Answer(status=502)
    answer.body(b"<html>Bad Gateway</html>")
    assert answer.close(WHOLE, late=False) == "failed"
    assert answer.error_type == "http_502"


def test_a_whole_answer_is_judged_like_a_stream() -> None:
    body = {
        "choices": [{"message": {"content": "a b c"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }
    answer = Answer(status=200)
    answer.body(json.dumps(body).encode())
    assert answer.close(WHOLE, late=False) == "ok"
    assert answer.token_at == []
    body["choices"][0]["finish_reason"] = "abort"
    answer = Answer(status=200)
    answer.body(json.dumps(body).encode())
    assert answer.close(WHOLE, late=False) == "failed"


def test_no_answer_at_all_failed() -> None:
    answer = Answer()
    answer.fail("connection", "refused")
    assert answer.close(STREAM, late=False) == "failed"
    assert Answer().close(STREAM, late=False) == "failed"


def test_the_first_cause_stays() -> None:
    answer = Answer(status=200)
    answer.fail("upstream_lost", "first")
    answer.fail("cut", "second")
    assert answer.error_type == "upstream_lost"
