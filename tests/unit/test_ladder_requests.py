"""What each rung makes of a request: less, and never something else."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.gateway.generation import Api, count_prompts, output_limit
from cluster.gateway.ladder import Asked, LadderKnobs, Lesser, shorter_context, shorter_output, turns_of
from cluster.gateway.schema import validate
from cluster.gateway.tokens import Count, TokenCounter
from policies.call import Call
from policies.ladder import NO_TOOLS, REFUSE, RUNGS, SHORT_CONTEXT, SHORT_OUTPUT, SMALL_MODEL
from policies.work import Work

KNOBS = LadderKnobs(output_share=0.5, output_tokens=64, context_tokens=40)


class Words(TokenCounter):
    """Counts a word as a token."""

    counted = 0

    def chat(self, messages: Any, tools: Any = None, *, plain: bool = True) -> Count:
        self.counted += 1
        return Count(sum(len(str(one.get("content") or "").split()) for one in messages), exact=plain)

    def text(self, prompt: str) -> Count:
        return Count(len(prompt.split()), exact=True)


def asked(api: Api = "chat", **body: Any) -> Asked:
    body.setdefault("model", "m")
    if api == "chat":
        body.setdefault("messages", [{"role": "user", "content": "hello"}])
    else:
        body.setdefault("prompt", "hello")
    return Asked(api, validate(api, body), body, count_prompts(api, body, Words()))


def said(role: str, words: int, name: str = "x") -> dict[str, Any]:
    return {"role": role, "content": " ".join([name] * words)}


@pytest.mark.parametrize(
    ("api", "given", "expected"),
    [
        ("chat", {}, {"max_completion_tokens": 64}),
        ("chat", {"max_tokens": 100}, {"max_tokens": 50}),
        ("chat", {"max_tokens": 7}, {"max_tokens": 4}),
        ("chat", {"max_completion_tokens": 100}, {"max_completion_tokens": 50}),
        (
            "chat",
            {"max_completion_tokens": 100, "max_tokens": 8},
            {"max_completion_tokens": 50, "max_tokens": 8},
        ),
        ("chat", {"max_tokens": 100, "min_tokens": 80}, {"max_tokens": 80, "min_tokens": 80}),
        ("completions", {}, {"max_tokens": 8}),
        ("completions", {"max_tokens": 100}, {"max_tokens": 50}),
    ],
)
def test_the_output_is_halved(api: Api, given: dict[str, int], expected: dict[str, int]) -> None:
    one = shorter_output(asked(api, **given), KNOBS)
    assert one is not None
    assert {name: value for name, value in one.body.items() if "tokens" in name} == expected
    assert output_limit(one.request) == expected.get("max_completion_tokens", expected.get("max_tokens"))
    assert validate(api, one.body).model_dump() == one.request.model_dump(), "body and request stay in step"


@pytest.mark.parametrize("given", [{"max_tokens": 1}, {"max_tokens": 100, "min_tokens": 100}])
def test_an_output_that_cannot_be_shorter_stays(given: dict[str, int]) -> None:
    assert shorter_output(asked(**given), KNOBS) is None


def test_the_oldest_turns_go_until_the_chat_fits() -> None:
    messages = [
        said("system", 5),
        said("user", 20, "first"),
        said("assistant", 20, "answer"),
        said("user", 20, "second"),
        said("assistant", 5, "more"),
        said("user", 5, "last"),
    ]
    one = shorter_context(asked(messages=messages), KNOBS, Words())
    assert one is not None
    assert one.body["messages"] == [messages[0], *messages[3:]]
    assert [count.tokens for count in one.counts] == [35]
    assert len(messages) == 6, "the client's own request is not touched"


def test_instructions_and_the_last_turn_stay_whatever_they_cost() -> None:
    messages = [
        said("user", 10, "old"),
        said("developer", 30),
        said("user", 50, "last"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t", "type": "function", "function": {}}],
        },
        {"role": "tool", "content": "found", "tool_call_id": "t"},
    ]
    one = shorter_context(asked(messages=messages), KNOBS, Words())
    assert one is not None
    assert one.body["messages"] == messages[1:]
    assert shorter_context(one, KNOBS, Words()) is None, "nothing more can go"


def test_no_tools_answer_is_left_without_its_question() -> None:
    messages = [
        said(role, 1) for role in ("assistant", "user", "assistant", "tool", "tool", "system", "user")
    ]
    assert turns_of(messages) == [[0], [1, 2, 3, 4], [6]]


@pytest.mark.parametrize(
    "one",
    [
        asked(messages=[said("user", 40)]),
        asked(messages=[said("system", 100), said("user", 1)]),
        asked("completions", prompt=" ".join("x" * 100)),
        asked("completions", prompt=[1] * 100),
    ],
    ids=["fits", "one turn", "text", "ids"],
)
def test_a_context_that_cannot_or_need_not_be_shorter_stays(one: Asked) -> None:
    assert shorter_context(one, KNOBS, Words()) is None


def test_a_long_chat_is_not_counted_once_a_message() -> None:
    counter = Words()
    messages = [said("user" if n % 2 == 0 else "assistant", 10) for n in range(1001)]
    one = shorter_context(asked(messages=messages), KNOBS, counter)
    assert one is not None
    assert one.counts[0].tokens <= 40
    assert counter.counted <= 3


def lesser(one: Asked, small: str | None = "small") -> Call:
    def build(changed: Asked) -> Call:
        work = Work(changed.counts[0].tokens, output_limit(changed.request) or 1000)
        degradable = Lesser(changed, KNOBS, Words(), small_model=lambda: small, build=build)
        return Call("c", work=work, payload=changed.body, degradable=degradable)

    return build(one)


def test_the_rungs_add_up_and_the_work_shrinks_with_them() -> None:
    call = lesser(asked(messages=[said("user", 100), said("assistant", 5), said("user", 30)], max_tokens=20))
    reached = []
    works = [call.work.tokens]
    for rung in RUNGS[1:]:
        assert call.degradable is not None
        smaller = call.degradable.at(call, rung)
        if smaller is not None:
            call = smaller
            reached.append(rung)
            works.append(call.work.tokens)
    assert reached == [SHORT_OUTPUT, SHORT_CONTEXT, SMALL_MODEL]
    assert call.payload["max_tokens"] == 10
    assert len(call.payload["messages"]) == 1
    assert call.payload["model"] == "small"
    assert works == [155, 145, 40, 40]


@pytest.mark.parametrize("rung", [NO_TOOLS, REFUSE, SMALL_MODEL])
def test_a_rung_that_is_not_there_changes_nothing(rung: str) -> None:
    call = lesser(asked(), small=None)
    assert call.degradable is not None
    assert call.degradable.at(call, rung) is None


def test_what_else_the_call_has_is_kept() -> None:
    call = lesser(asked(max_tokens=100))
    call.delivery.attempts = 3
    assert call.degradable is not None
    smaller = call.degradable.at(call, SHORT_OUTPUT)
    assert smaller is not None
    assert smaller.delivery is call.delivery
    assert smaller.request_id == call.request_id
