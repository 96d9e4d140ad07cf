"""Whole answers from streams: text, several choices, log probabilities, tool calls."""

from __future__ import annotations

from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion

from cluster.gateway.assemble import whole_answer

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]}


def test_text_is_put_together_choice_by_choice() -> None:
    chunks = [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(1, {"role": "assistant", "content": ""}),
        chunk(1, {"content": "x"}),
        chunk(0, {"content": "a"}),
        chunk(0, {"content": "b"}, "stop", stop_reason=None),
        chunk(1, {"content": "y"}, "length", stop_reason="END"),
    ]
    answer = ChatCompletion.model_validate(whole_answer("chat", chunks, USAGE), strict=True)
    assert [choice.message.content for choice in answer.choices] == ["ab", "xy"]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert answer.choices[1].stop_reason == "END"  # type: ignore[attr-defined]
    assert answer.object == "chat.completion"
    assert answer.id == "chatcmpl-1"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_log_probabilities_are_joined() -> None:
    def logprobs(token: str) -> dict[str, Any]:
        return {"content": [{"token": token, "logprob": -0.1, "bytes": None, "top_logprobs": []}]}

    chunks = [
        chunk(0, {"role": "assistant", "content": ""}, logprobs=None),
        chunk(0, {"content": "a"}, logprobs=logprobs("a")),
        chunk(0, {"content": "b"}, "stop", logprobs=logprobs("b")),
    ]
    answer = ChatCompletion.model_validate(whole_answer("chat", chunks, USAGE))
    assert answer.choices[0].logprobs is not None
    assert [one.token for one in answer.choices[0].logprobs.content or ()] == ["a", "b"]


def test_tool_calls_are_joined_by_index() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, **fields}]}

    chunks = [
        chunk(0, {"role": "assistant", "content": ""}),
        chunk(0, call(0, id="c0", type="function", function={"name": "price", "arguments": ""})),
        chunk(0, call(0, function={"arguments": '{"a":'})),
        chunk(0, call(1, id="c1", type="function", function={"name": "news", "arguments": "{"})),
        chunk(0, call(0, function={"arguments": "1}"})),
        chunk(0, call(1, function={"arguments": "}"}), "tool_calls"),
    ]
    raw = whole_answer("chat", chunks, USAGE)
    assert all("index" not in one for one in raw["choices"][0]["message"]["tool_calls"]), "only in streams"
    answer = ChatCompletion.model_validate(raw)
    calls = answer.choices[0].message.tool_calls or []
    assert [(one.id, one.function.name, one.function.arguments) for one in calls] == [  # type: ignore[union-attr]
        ("c0", "price", '{"a":1}'),
        ("c1", "news", "{}"),
    ]
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"


def test_the_chunks_themselves_are_left_alone() -> None:
    first = chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]})
    second = chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": "b"}}]}, "stop")
    before = repr([first, second])
    assert whole_answer("chat", [first, second], USAGE) == whole_answer("chat", [first, second], USAGE)
    assert repr([first, second]) == before


def test_completions_join_text_and_log_probabilities_and_token_ids() -> None:
    def piece(text: str, finish: str | None = None) -> dict[str, Any]:
        logprobs = {
            "text_offset": [0],
            "token_logprobs": [-0.1],
            "tokens": [text],
            "top_logprobs": [{text: -0.1}],
        }
        choice = {
            "index": 0,
            "text": text,
            "finish_reason": finish,
            "logprobs": logprobs,
            "token_ids": [1, 2],
        }
        return {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [choice]}

    raw = whole_answer("completions", [piece("a"), piece("b", "length")], USAGE)
    answer = Completion.model_validate(raw)
    assert answer.choices[0].text == "ab"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["a", "b"]
    assert answer.choices[0].finish_reason == "length"
    assert raw["choices"][0]["token_ids"] == [1, 2, 1, 2]
    assert answer.object == "text_completion"


def test_an_answer_of_no_text_is_an_empty_one() -> None:
    answer = whole_answer(
        "completions", [{**HEAD, "choices": [{"index": 0, "finish_reason": "stop"}]}], USAGE
    )
    assert answer["choices"][0]["text"] == ""
