"""What a request must look like, what is sent on, and how long prompts are found to be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.gateway import generation
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.generation import Context, check_length, count_prompts, estimate_work, upstream_body
from cluster.gateway.schema import ChatRequest, parse_json, validate
from cluster.gateway.tokens import Count, TokenCounter, load
from cluster.settings import Settings
from policies.work import OutputEstimator
from tests.fakes.replica import MODEL

CONTEXT = Context(MODEL, 4096)
USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER], **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hi", **fields}


MALFORMED: list[tuple[str, dict[str, Any], str | None]] = [
    ("chat", {"model": MODEL}, "messages"),
    ("chat", {"messages": [USER]}, "model"),
    ("chat", chat(model=7), "model"),
    ("chat", chat(model=""), "model"),
    ("chat", chat(messages=[]), "messages"),
    ("chat", chat(messages="hi"), "messages"),
    ("chat", chat(messages=["hi"]), "messages.0"),
    ("chat", chat(messages=[{"content": "hi"}]), "messages.0.role"),
    ("chat", chat(messages=[{"role": "robot", "content": "hi"}]), "messages.0.role"),
    ("chat", chat(messages=[{"role": "user", "content": 7}]), "messages.0.content"),
    ("chat", chat(max_tokens=0), "max_tokens"),
    ("chat", chat(max_tokens=-1), "max_tokens"),
    ("chat", chat(max_tokens="10"), "max_tokens"),
    ("chat", chat(max_tokens=1.5), "max_tokens"),
    ("chat", chat(max_completion_tokens=True), "max_completion_tokens"),
    ("chat", chat(temperature=3), "temperature"),
    ("chat", chat(temperature="hot"), "temperature"),
    ("chat", chat(top_p=0), "top_p"),
    ("chat", chat(n=0), "n"),
    ("chat", chat(n=1000), "n"),
    ("chat", chat(stream="yes"), "stream"),
    ("chat", chat(stream_options={"include_usage": True}), None),
    ("chat", chat(stream=True, stream_options=7), "stream_options"),
    ("chat", chat(stop=7), "stop"),
    ("chat", chat(seed="x"), "seed"),
    ("chat", chat(presence_penalty=5), "presence_penalty"),
    ("chat", chat(tool_call="get_price"), "tool_call"),
    ("chat", chat(tool_call={"params": {}}), "tool_call.method"),
    ("chat", chat(tool_call={"method": "get_price", "paramz": {}}), "tool_call.paramz"),
    ("chat", chat(tool_call={"method": "get_price", "params": []}), "tool_call.params"),
    ("chat", chat(tool_call={"method": "get_price", "optional": "no"}), "tool_call.optional"),
    ("completions", {"model": MODEL}, "prompt"),
    ("completions", text(prompt=""), "__ok__"),
    ("completions", text(prompt=7), "prompt"),
    ("completions", text(prompt=[]), "prompt"),
    ("completions", text(prompt=[1, "a"]), "prompt"),
    ("completions", text(prompt=[[]]), "prompt"),
    ("completions", text(prompt=[-1]), "prompt"),
    ("completions", text(prompt=None), "prompt"),
    ("completions", text(max_tokens=None), "__ok__"),
]


@pytest.mark.parametrize(("api", "body", "param"), MALFORMED)
def test_the_field_that_is_wrong_is_named(api: str, body: dict[str, Any], param: str | None) -> None:
    if param == "__ok__":
        validate(api, body)
        return
    with pytest.raises(InvalidRequest) as caught:
        validate(api, body)
    assert caught.value.status == 400
    assert caught.value.code
    assert (caught.value.param or "").startswith(param or "")
    assert str(caught.value)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b'"x"', b"\xff\xfe", b'{"a": NaN}', b'{"a": Infinity}', b"[" * 100_000, b"null"],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    assert caught.value.status == 400


def test_fields_that_the_gateway_does_not_know_pass_through() -> None:
    body = chat(min_tokens=3, top_k=5, logit_bias={"1": 2}, whatever={"deep": [1]})
    validate("chat", body)
    sent = json.loads(upstream_body(body))
    assert {key: sent[key] for key in body} == body


def test_a_replica_is_always_asked_for_a_stream_with_usage() -> None:
    sent = json.loads(upstream_body(chat(stream=False, tool_call={"method": "m"})))
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert "tool_call" not in sent
    continuous = {"continuous_usage_stats": True}
    sent = json.loads(upstream_body(chat(stream=True, stream_options=continuous)))
    assert sent["stream_options"] == {"include_usage": True}, "else every event would carry usage unasked"
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    assert json.loads(upstream_body(chat(stream=True, stream_options=wanted)))["stream_options"] == wanted


def test_a_tools_answer_goes_to_the_end_of_the_last_user_message_or_of_the_prompt() -> None:
    history = [USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "price?"}]
    put = generation.with_tool_answer("chat", chat(messages=history), "get_price", {"price": "1"})
    assert put["messages"][2]["content"] == 'price?\n\n[get_price] {"price": "1"}'
    assert put["messages"][:2] == history[:2]
    assert history[2]["content"] == "price?"
    parts = [{"type": "text", "text": "price?"}]
    put = generation.with_tool_answer("chat", chat(messages=[{"role": "user", "content": parts}]), "m", 1)
    assert len(put["messages"][0]["content"]) == 2
    assert generation.with_tool_answer("completions", text(), "m", 1)["prompt"] == "hi\n\n[m] 1"
    assert generation.with_tool_answer("completions", text(prompt=["a", "b"]), "m", 1)["prompt"] == [
        "a\n\n[m] 1",
        "b\n\n[m] 1",
    ]
    with pytest.raises(InvalidRequest, match="token ids"):
        generation.with_tool_answer("completions", text(prompt=[1, 2]), "m", 1)


@pytest.mark.parametrize(
    ("tokens", "limit", "fits"),
    [
        (4000, 96, True),
        (4000, 97, False),
        (4095, None, True),
        (4096, None, False),
        (1, 4095, True),
        (1, 4096, False),
    ],
)
def test_what_cannot_fit_the_context_is_refused(tokens: int, limit: int | None, fits: bool) -> None:
    request = validate("chat", chat(max_tokens=limit))
    if fits:
        check_length(request, [Count(tokens, exact=True)], CONTEXT)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_length(request, [Count(tokens, exact=True)], CONTEXT)
    assert caught.value.code == "context_length_exceeded"


def test_nobody_is_refused_because_of_an_estimate() -> None:
    check_length(validate("chat", chat(max_tokens=100)), [Count(100_000, exact=False)], CONTEXT)


def test_work_counts_every_prompt_and_every_choice() -> None:
    request = validate("completions", text(prompt=["a", "b"], n=3, max_tokens=10))
    work = estimate_work(request, [Count(5, True), Count(7, True)], OutputEstimator(), CONTEXT)
    assert (work.prompt_tokens, work.output_tokens, work.sequences) == (12, 60, 6)
    open_ended = validate("chat", chat())
    assert isinstance(open_ended, ChatRequest)
    work = estimate_work(open_ended, [Count(4090, True)], OutputEstimator(), CONTEXT)
    assert work.output_tokens == 6, "no more than the context has room for"
    assert generation.output_limit(validate("completions", text())) == 16


# --- counting --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> TokenCounter:
    made = load(Settings(cache_dir=tmp_path_factory.mktemp("cache")))
    assert made.exact
    return made


def test_prompts_are_counted_with_the_models_own_tokenizer_and_template(counter: TokenCounter) -> None:
    plain = counter.text("The quick brown fox")
    assert plain.exact
    assert 4 <= plain.tokens <= 19
    rendered = counter.chat([{"role": "user", "content": "The quick brown fox"}])
    assert rendered == Count(plain.tokens + 3, exact=True), "role, end of message, and the answer's role"


def test_what_only_the_engine_can_render_is_an_estimate(counter: TokenCounter) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert not counter.chat(parts).exact
    assert not count_prompts("chat", chat(chat_template="{{ messages }}"), counter)[0].exact
    assert not counter.chat([{"role": "robot", "content": "the template refuses this role"}]).exact
    assert not count_prompts("completions", text(truncate_prompt_tokens=5), counter)[0].exact


def test_token_ids_need_no_tokenizer() -> None:
    nothing = TokenCounter()
    assert count_prompts("completions", text(prompt=[1, 2, 3]), nothing) == [Count(3, exact=True)]
    assert count_prompts("completions", text(prompt=[[1, 2], [3]]), nothing) == [
        Count(2, True),
        Count(1, True),
    ]
    assert [count.exact for count in count_prompts("completions", text(prompt=["a", "b"]), nothing)] == [
        False
    ] * 2


def test_without_the_models_files_counts_are_estimates(tmp_path: Path) -> None:
    absent = load(Settings(model=str(tmp_path / "nowhere")))
    assert not absent.exact
    assert absent.text("x" * 350) == Count(100, exact=False)
    (tmp_path / "tokenizer.json").write_text("not json")
    assert not load(Settings(model=str(tmp_path))).exact


def test_the_gateway_loads_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys, cluster.gateway.__main__, cluster.gateway.tokens as t, cluster.settings as s;"
        "t.load(s.Settings());"
        "print([m for m in ('torch', 'transformers', 'vllm', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
