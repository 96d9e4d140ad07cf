"""Streams that are cut in every way, behind a real gateway: what the client gets is the undisturbed answer.

The replicas are fakes whose every token depends on all before it, with a real tokenizer that cuts letters in two.
``test_resume_cluster.py`` shows the same with the real engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster import public
from cluster.gateway.tokens import TokenCounter
from cluster.model.tokenizer import CHAT_TEMPLATE, train, training_text
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour
from tests.fakes.toy_model import CONTEXT, END_ID

TOKENIZER = train(training_text(), 600)
OTHER_TOKENIZER = train(training_text(), 500)
TOKENS = 40
CHAT, TEXT = "chat", "completions"
PATHS = {CHAT: "/v1/chat/completions", TEXT: "/v1/completions"}
FAST: dict[str, float] = {"header_timeout_s": 0.5, "first_token_timeout_s": 0.5, "stall_timeout_s": 0.5}


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(3, tokenizer=TOKENIZER, **FAST) as built:
        await built.profile("resilient", "ejection")
        yield built


@dataclass
class Got:
    """What a client has got, made comparable: only ids and times of creation may differ."""

    status: int
    events: list[Any] = field(default_factory=list)
    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: Any = None
    error: dict[str, Any] | None = None
    note: Any = None
    names: set[str] = field(default_factory=set)
    done: bool = False
    headers: Any = None


async def ask(made: Rig, api: str, *, stream: bool = True, url: str = "", **fields: Any) -> Got:
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": stream,
        **fields,
    }
    if api == CHAT:
        body.setdefault("messages", [{"role": "user", "content": "say something, élève"}])
    else:
        body.setdefault("prompt", "say something")
    async with made.http.post((url or made.url) + PATHS[api], json=body) as response:
        raw = (await response.read()).decode()
        got = Got(response.status, headers=response.headers)
    if not stream:
        whole = json.loads(raw)
        got.error, got.usage, got.note = whole.get("error"), whole.get("usage"), whole.pop("brownout", None)
        for choice in whole.get("choices", ()):
            got.text, got.finish = (
                choice["message"]["content"] if api == CHAT else choice["text"],
                choice["finish_reason"],
            )
            got.ids = choice.get("token_ids") or []
        got.names.add(whole.pop("id", ""))
        whole.pop("created", None)
        got.events = [whole]
        return got
    for event in raw.split("\n\n")[:-1]:
        if event == "data: [DONE]":
            got.done = True
            got.events.append("done")
            continue
        chunk = json.loads(event.removeprefix("data: "))
        got.note = chunk.pop("brownout", got.note)
        got.names.add(f"{chunk.pop('id', '')} {chunk.pop('created', '')}")
        got.error = chunk.get("error", got.error)
        got.usage = chunk.get("usage") or got.usage
        for choice in chunk.get("choices", ()):
            got.text += (choice["delta"].get("content") if api == CHAT else choice["text"]) or ""
            got.ids += choice.get("token_ids") or []
            got.finish = choice["finish_reason"] or got.finish
        got.events.append(json.dumps(chunk, ensure_ascii=False))
    return got


class _Shared(list[Behaviour]):
    def popleft(self) -> Behaviour:
        return self.pop(0)


def script(made: Rig, behaviours: Iterable[Behaviour]) -> None:
    """Let the next attempts behave so, whichever replicas they go to."""
    shared = _Shared(behaviours)
    for replica in made.replicas:
        replica.script = shared  # type: ignore[assignment]


async def both(made: Rig, api: str, cuts: Iterable[Behaviour], **fields: Any) -> tuple[Got, Got]:
    """Ask undisturbed, then cut; the two go through the same gateway."""
    script(made, ())
    whole = await ask(made, api, **fields)
    assert whole.error is None
    script(made, cuts)
    return whole, await ask(made, api, **fields)


def same(cut: Got, whole: Got) -> None:
    assert cut.error is None
    assert cut.text == whole.text
    assert cut.ids == whole.ids
    assert cut.events == whole.events
    assert len(cut.names) == 1, "one answer has one name"


OPTIONS = {
    "plain": {},
    "with usage": {"stream_options": {"include_usage": True}},
    "running usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "with ids": {"return_token_ids": True, "stream_options": {"include_usage": True}},
}


@pytest.mark.parametrize("cuts", [(1,), (2,), (39,), (13, 0, 7, 1, 5), (20, 0, 0, 10)], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("api", [CHAT, TEXT])
async def test_a_cut_stream_is_the_undisturbed_one_event_by_event(
    made: Rig, api: str, options: str, cuts: tuple[int, ...]
) -> None:
    whole, cut = await both(made, api, [Behaviour(cut_after=n) for n in cuts], **OPTIONS[options])
    same(cut, whole)
    assert cut.done
    assert cut.finish == "length"
    assert cut.note == {"resumes": len(cuts)}
    assert whole.note is None
    await made.idle()


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("api", [CHAT, TEXT])
async def test_a_whole_answer_is_the_undisturbed_one_and_goes_on_instead_of_starting_again(
    made: Rig, api: str, ids: bool
) -> None:
    cuts = [Behaviour(cut_after=30), Behaviour(cut_after=5)]
    whole, cut = await both(made, api, cuts, stream=False, return_token_ids=ids)
    same(cut, whole)
    assert cut.note == {"resumes": 2}
    assert cut.headers[public.HEADER_ATTEMPTS] == "3"
    sent = [len(replica.seen[-1].body.get("prompt") or ()) for replica in made.replicas if replica.seen]
    assert cut.usage["completion_tokens"] == TOKENS
    assert max(sent) >= 35, "the last attempt read what was there already"


@pytest.mark.parametrize("api", [CHAT, TEXT])
async def test_letters_that_are_cut_in_two_come_out_whole(made: Rig, api: str) -> None:
    whole, _ = await both(made, api, [], return_token_ids=True)
    silent = [number for number in range(1, TOKENS) if _text(whole, number, api) == ""]
    assert silent, "some tokens are no whole letter"
    for number in silent:
        _, cut = await both(made, api, [Behaviour(cut_after=number)], return_token_ids=True)
        same(cut, whole)


def _text(got: Got, number: int, api: str) -> str:
    choice = json.loads(got.events[number + (api == CHAT)])["choices"][0]
    text: str = choice["delta"]["content"] if api == CHAT else choice["text"]
    return text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", [CHAT, TEXT])
@pytest.mark.parametrize(
    "cut",
    [
        Behaviour(cut_after=9, cut_inside=True),
        Behaviour(cut_after=9, tokens_per_event=3),
        Behaviour(end_after=9),
        Behaviour(error_event=500, error_after=9),
        Behaviour(stall_after=9, token_gate=asyncio.Event()),
        Behaviour(cut_after=9, split=5),
    ],
    ids=["inside an event", "several tokens an event", "ended", "error event", "frozen", "in small pieces"],
)
async def test_whatever_cuts_the_stream(made: Rig, cut: Behaviour, api: str, stream: bool) -> None:
    whole, got = await both(made, api, [cut], stream=stream, return_token_ids=True)
    assert (got.text, got.ids, got.finish, got.error) == (whole.text, whole.ids, whole.finish, None)
    assert got.note == {"resumes": 1}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("api", [CHAT, TEXT])
@pytest.mark.parametrize("lost", ["usage", "done"])
async def test_where_only_the_end_was_lost_the_gateway_ends_the_answer_itself(
    made: Rig, lost: str, api: str, usage: bool, stream: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if usage and stream else {}
    whole, cut = await both(made, api, [Behaviour(cut_before=lost)], stream=stream, **options)
    same(cut, whole)
    assert cut.done is stream
    assert cut.note is None
    assert sum(len(replica.seen) for replica in made.replicas) == 2, "nothing is generated again"
    assert (
        made.gateway.metrics.registry.get_sample_value("brownout_tokens_total", {"kind": "completion"}) == 80
    )


@pytest.mark.parametrize(
    "cut", [Behaviour(cut_before="usage"), Behaviour(cut_after=4), Behaviour(cut_after=16)]
)
@pytest.mark.parametrize("api", [CHAT, TEXT])
async def test_an_end_that_the_gateway_does_not_know_comes_where_it_would_have_come(
    made: Rig, api: str, cut: Behaviour
) -> None:
    script(made, ())
    first = await ask(made, api, stream_options={"include_usage": True})
    end_at = first.usage["prompt_tokens"] + 17
    fields = {"vllm_xargs": {"brownout_end_at": end_at}, "return_token_ids": True}
    whole, got = await both(made, api, [cut], **fields)
    same(got, whole)
    assert whole.finish == "stop"
    assert whole.ids[-1] == END_ID
    assert len(whole.ids) == 18


@pytest.mark.parametrize("cuts", [(3,), (9,), (3, 3)])
async def test_an_answer_that_ends_with_the_context_does_so_after_a_cut_too(
    made: Rig, cuts: tuple[int, ...]
) -> None:
    counter = TokenCounter(TOKENIZER, CHAT_TEMPLATE)
    content = "a " * 100
    while counter.chat([{"role": "user", "content": content + "a a a a "}]).tokens < CONTEXT - 10:
        content += "a " * max(1, (CONTEXT - counter.chat([{"role": "user", "content": content}]).tokens) // 4)
    fields = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": None,
        "return_token_ids": True,
    }
    whole, cut = await both(made, CHAT, [Behaviour(cut_after=n) for n in cuts], **fields)
    same(cut, whole)
    assert whole.finish == "length"
    assert 9 < len(whole.ids) < 60


async def test_the_continuation_asks_for_the_rest_and_nothing_else(made: Rig) -> None:
    fields = {
        "max_tokens": None,
        "max_completion_tokens": 30,
        "logit_bias": {"9": -5},
        "ignore_eos": True,
        "cache_salt": "pepper",
        "skip_special_tokens": False,
        "user": "u",
        "stop": [],
        "n": 1,
        "presence_penalty": 0.0,
        "response_format": {"type": "text"},
        "add_generation_prompt": True,
    }
    script(made, [Behaviour(cut_after=12)])
    got = await ask(made, CHAT, **fields)
    assert got.error is None
    first, second = sorted(
        (seen for replica in made.replicas for seen in replica.seen), key=lambda one: one.path, reverse=False
    )
    assert first.path == PATHS[CHAT]
    assert second.path == PATHS[TEXT]
    assert second.headers[public.HEADER_REQUEST_ID] == first.headers[public.HEADER_REQUEST_ID] + "-2"
    assert first.body["cache_salt"] not in ("", "pepper")
    prompt = second.body.pop("prompt")
    assert second.body == {
        "model": MODEL,
        "max_tokens": 18,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logit_bias": {"9": -5},
        "ignore_eos": True,
        "cache_salt": first.body["cache_salt"],  # its tenant's, whatever the client says
        "skip_special_tokens": False,
        "user": "u",
    }
    assert len(prompt) == TokenCounter(TOKENIZER, CHAT_TEMPLATE).chat(first.body["messages"]).tokens + 12


# --- sampling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [CHAT, TEXT])
@pytest.mark.parametrize(
    "fields", [{"temperature": 0.8}, {"temperature": None}, {"top_p": 0.9, "temperature": 1.2}]
)
async def test_seeded_sampling_is_keyed_by_position_and_goes_on_exactly(
    made: Rig, api: str, fields: dict[str, Any]
) -> None:
    whole, cut = await both(made, api, [Behaviour(cut_after=7)], seed=5, return_token_ids=True, **fields)
    same(cut, whole)
    sent = made.replicas[0].seen[0].body
    assert sent["temperature"] == 0
    assert "seed" not in sent
    assert sent["vllm_xargs"] == {
        "brownout_seed": 5,
        "brownout_temperature": fields["temperature"] or 1.0,
        "brownout_top_p": fields.get("top_p", 1.0),
    }


async def test_unseeded_sampling_is_refused_unless_the_caller_opts_in(made: Rig) -> None:
    script(made, [Behaviour(cut_after=7)])
    refused = await ask(made, CHAT, temperature=0.8)
    assert refused.error is not None
    assert refused.error["type"] == public.ERROR_NOT_RESUMABLE
    assert "drawn at random" in refused.error["message"]
    script(made, [Behaviour(cut_after=7)])
    opted = await ask(made, CHAT, temperature=0.8, resume="best_effort", return_token_ids=True)
    assert opted.error is None
    assert len(opted.ids) == TOKENS
    assert opted.note == {"resumes": 1}
    assert all("resume" not in seen.body for replica in made.replicas for seen in replica.seen)


async def test_a_seed_is_left_to_the_engine_where_it_does_not_key_by_position() -> None:
    async with rig(2, tokenizer=TOKENIZER, positional_sampling=False) as made:
        script(made, [Behaviour(cut_after=7)])
        got = await ask(made, CHAT, seed=5, temperature=0.8)
        assert got.error is not None
        assert got.error["type"] == public.ERROR_NOT_RESUMABLE
        assert made.replicas[0].seen[0].body["seed"] == 5


# --- refusals --------------------------------------------------------------------------------------------

NOT_PROVEN: dict[str, dict[str, Any]] = {
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "min_tokens": {"min_tokens": 3},
    "stop": {"stop": ["zzz"]},
    "stop_token_ids": {"stop_token_ids": [9]},
    "bad_words": {"bad_words": ["zzz"]},
    "logprobs": {"logprobs": True},
    "several prompts": {"n": 2},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"regex": "a"}},
    "use_beam_search": {"use_beam_search": True},
    "vllm_xargs": {"vllm_xargs": {"other": 1}},
    "a_new_parameter": {"a_new_parameter": 1},
    "more than text": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
}


@pytest.mark.parametrize("what", NOT_PROVEN)
async def test_what_is_not_proven_fails_visibly_and_says_why(made: Rig, what: str) -> None:
    script(made, [Behaviour(cut_after=5)])
    got = await ask(made, CHAT, **NOT_PROVEN[what])
    assert got.error is not None
    assert got.error["type"] == got.error["code"] == public.ERROR_NOT_RESUMABLE
    known = {"several prompts": "'n'", "more than text": "more than text", "vllm_xargs": "'other'"}
    assert known.get(what, f"'{what}'") in got.error["message"]
    assert not got.done
    assert len(made.events("attempt_started")) == 1
    assert all("return_token_ids" not in seen.body for replica in made.replicas for seen in replica.seen)
    await made.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_where_the_text_does_not_agree_with_the_ids_nothing_is_guessed(stream: bool) -> None:
    counter = TokenCounter(OTHER_TOKENIZER, CHAT_TEMPLATE)
    async with rig(3, tokenizer=TOKENIZER, counter=counter) as made:
        whole, got = await both(made, CHAT, [Behaviour(cut_after=15)], stream=stream)
        if stream:
            assert got.error is not None
            assert got.error["type"] == public.ERROR_NOT_RESUMABLE
            assert "another text" in got.error["message"]
        else:
            assert got.text == whole.text, "nothing was delivered, so it starts again"
            assert made.events("resumed") == []
            assert [(event["decode"]) for event in made.events("wasted")] == [15]


async def test_without_a_tokenizer_the_reason_is_told() -> None:
    async with rig(2, tokenizer=TOKENIZER, counter=TokenCounter()) as made:
        script(made, [Behaviour(cut_after=5)])
        got = await ask(made, CHAT)
        assert got.error is not None
        assert "tokenizer" in got.error["message"]


async def test_switched_off_a_cut_stream_is_a_lost_one(made: Rig) -> None:
    await made.profile("resilient", "resume")
    script(made, [Behaviour(cut_after=5)])
    got = await ask(made, CHAT)
    assert got.error is not None
    assert got.error["type"] == public.ERROR_UPSTREAM_LOST
    assert all("return_token_ids" not in seen.body for replica in made.replicas for seen in replica.seen)


# --- accounts --------------------------------------------------------------------------------------------


async def test_each_token_counts_once_and_what_was_done_twice_is_counted_apart(made: Rig) -> None:
    whole, cut = await both(
        made, CHAT, [Behaviour(cut_after=10), Behaviour(cut_after=10)], stream_options={"include_usage": True}
    )
    assert cut.usage == whole.usage
    prompt = whole.usage["prompt_tokens"]
    value = made.gateway.metrics.registry.get_sample_value
    assert value("brownout_tokens_total", {"kind": "completion"}) == 2 * TOKENS
    assert value("brownout_tokens_total", {"kind": "prompt"}) == 2 * prompt
    assert value(public.METRIC_RESUMES) == 2
    assert value(public.METRIC_WASTED_TOKENS, {"kind": "prefill"}) == 2 * prompt + 10 + 20
    assert value(public.METRIC_WASTED_TOKENS, {"kind": "decode"}) == 0
    assert [(event["attempt"], event["at_token"]) for event in made.events("resumed")] == [(2, 10), (3, 20)]
    await made.idle()


async def test_the_work_of_a_continuation_is_what_it_has_to_read_and_what_is_left(made: Rig) -> None:
    gate = asyncio.Event()
    script(made, [Behaviour(cut_after=30), Behaviour(first_token_gate=gate)])
    await made.profile("resilient", "ejection", first_token_timeout_s=10)
    asking = asyncio.ensure_future(ask(made, TEXT, prompt=[20] * 50))
    await made.until(lambda: made.events("resumed"))
    await made.until(lambda: made.gateway.ledger.total.attempts == 1)
    assert (made.gateway.ledger.total.prompt_tokens, made.gateway.ledger.total.output_tokens) == (80, 10)
    gate.set()
    assert (await asking).error is None
    await made.idle()


async def test_max_resumes_bounds_what_one_answer_costs(made: Rig) -> None:
    await made.profile("resilient", "ejection", max_resumes=2)
    script(made, [Behaviour(cut_after=3)] * 9)
    got = await ask(made, CHAT)
    assert got.error is not None
    assert got.error["type"] == public.ERROR_UPSTREAM_LOST
    assert len(made.events("attempt_started")) == 3
    assert made.events("retry_suppressed")[0]["reason"] == "resumes"


async def test_a_client_that_leaves_while_its_stream_is_continued_leaves_nothing_behind(made: Rig) -> None:
    script(made, [Behaviour(cut_after=3), Behaviour(first_token_gate=asyncio.Event())])
    await made.profile("resilient", "ejection", first_token_timeout_s=10)
    asking = asyncio.ensure_future(ask(made, CHAT))
    await made.until(lambda: made.events("resumed"))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await made.idle()


async def test_many_streams_are_cut_at_once_and_every_one_is_whole(made: Rig) -> None:
    await made.profile("resilient", "ejection", "retry_budget", max_resumes=50)
    script(made, ())
    prompts = [[20 + n] * (5 + n) for n in range(24)]
    truth = [await ask(made, TEXT, prompt=prompt, return_token_ids=True) for prompt in prompts]
    script(made, [Behaviour(cut_after=n % 17, cut_inside=n % 3 == 0) for n in range(120)])
    cut = await asyncio.gather(*(ask(made, TEXT, prompt=prompt, return_token_ids=True) for prompt in prompts))
    for one, whole in zip(cut, truth, strict=True):
        same(one, whole)
    assert len(made.events("resumed")) > 80
    await made.idle()
