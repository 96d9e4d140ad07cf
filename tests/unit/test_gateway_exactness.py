"""Which requests may be continued, and why others may not."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.gateway.exactness import by_position, why_not

GREEDY = {"model": "m", "prompt": "x", "temperature": 0, "max_tokens": 9}


def reason(defaults: dict[str, Any] | None = None, prompts: int = 1, **fields: Any) -> str | None:
    return why_not({**GREEDY, **fields}, prompts=prompts, defaults=defaults or {})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"seed": 3, "top_p": 0.5, "top_k": 3},
        {"n": 1, "stop": [], "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0},
        {"logprobs": None, "stop": None, "tools": None, "response_format": None},
        {"logprobs": False, "echo": False, "use_beam_search": False},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"logit_bias": {"7": 1}, "ignore_eos": True, "skip_special_tokens": False, "cache_salt": "s"},
        {"vllm_xargs": {"brownout_end_at": 7}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"tool_call": {"method": "m"}, "resume": "exact"},
    ],
)
def test_what_leaves_the_choice_to_the_tokens_before_may_be_continued(fields: dict[str, Any]) -> None:
    assert reason(**fields) is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"min_tokens": 1}, "min_tokens"),
        ({"stop": "x"}, "stop"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"repetition_detection": {}}, "repetition_detection"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
        ({"tools": [{}]}, "tools"),
        ({"vllm_xargs": {"brownout_end_at": 7, "x": 1}}, "'x'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"prompts": 2}, "prompts"),
        ({"temperature": 0.5}, "random"),
        ({"temperature": None}, "random"),
        ({"temperature": None, "resume": "exact"}, "random"),
    ],
)
def test_what_is_not_proven_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    why = reason(**fields)
    assert why is not None
    assert named in why


def test_the_models_own_defaults_count() -> None:
    assert reason(defaults={"temperature": 0.0}, temperature=None) is None
    assert reason(defaults={"repetition_penalty": 1.05}) == "the model itself sets 'repetition_penalty'"
    assert reason(defaults={"repetition_penalty": 1.05}, repetition_penalty=1.0) is None
    assert reason(defaults={"presence_penalty": 0.0, "top_k": 20}) is None


def test_the_caller_may_take_the_risk_of_a_new_draw_and_of_nothing_else() -> None:
    assert reason(temperature=0.7, resume="best_effort") is None
    assert reason(temperature=0.7, resume="best_effort", presence_penalty=1.0) is not None


def keyed(defaults: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return by_position({**GREEDY, **fields}, prompts=1, defaults=defaults or {})


def test_a_seed_is_keyed_by_position_and_may_be_continued() -> None:
    body = keyed(seed=7, temperature=0.8, top_p=0.9, vllm_xargs={"brownout_end_at": 50})
    assert body == {
        **GREEDY,
        "temperature": 0,
        "vllm_xargs": {
            "brownout_end_at": 50,
            "brownout_seed": 7,
            "brownout_temperature": 0.8,
            "brownout_top_p": 0.9,
        },
    }
    assert why_not(body, prompts=1, defaults={}) is None


def test_the_temperature_that_is_keyed_is_the_one_that_the_engine_would_take() -> None:
    assert keyed(seed=7, temperature=None)["vllm_xargs"]["brownout_temperature"] == 1.0
    body = keyed({"temperature": 0.6, "top_p": 0.95}, seed=7, temperature=None)
    assert body["vllm_xargs"] == {"brownout_seed": 7, "brownout_temperature": 0.6, "brownout_top_p": 0.95}


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7, "temperature": 0},
        {"temperature": 0.8},
        {"seed": 2**63, "temperature": 0.8},
        {"seed": 7, "temperature": 0.8, "top_k": 5},
        {"seed": 7, "temperature": 0.8, "min_p": 0.1},
        {"seed": 7, "temperature": 0.8, "n": 2},
        {"seed": 7, "temperature": 0.8, "presence_penalty": 1},
        {"seed": 7, "temperature": 0.8, "logprobs": True},
        {"seed": 7, "temperature": 0.8, "vllm_xargs": {"brownout_seed": 1}},
    ],
)
def test_what_cannot_be_drawn_in_that_way_is_left_as_it_is(fields: dict[str, Any]) -> None:
    assert keyed(**fields) == {**GREEDY, **fields}


def test_a_model_that_cuts_its_choice_by_itself_is_left_as_it_is() -> None:
    fields: dict[str, Any] = {"seed": 7, "temperature": 0.8}
    assert keyed({"top_k": 20}, **fields) == {**GREEDY, **fields}
    assert keyed({"top_k": 20}, **fields, top_k=0)["temperature"] == 0
