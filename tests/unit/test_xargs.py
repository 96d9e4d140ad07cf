"""What a request may ask for in ``vllm_xargs``: read with its limits, refused with field, value and mend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.gateway.errors import InvalidRequest
from cluster.gateway.schema import CompletionRequest, validate
from cluster.xargs import Extras, Sampling


def request(**fields: Any) -> SimpleNamespace:
    """Return the fields of vLLM's SamplingParams that matter here, as of a greedy request."""
    plain: dict[str, Any] = {
        "structured_outputs": None,
        "ignore_eos": False,
        "min_tokens": 0,
        "temperature": 0.0,
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    return SimpleNamespace(**plain | fields)


@pytest.mark.parametrize("arguments", [None, {}, {"session_id": "x"}, {"kv_transfer_params": {}}])
def test_what_is_not_ours_is_left_alone(arguments: dict[str, Any] | None) -> None:
    assert Extras.read(arguments) is None


def test_values_are_read() -> None:
    found = Extras.read(
        {
            "brownout_end_at": 40,
            "brownout_seed": -7,
            "brownout_temperature": 2,
            "brownout_top_p": 0.5,
            "other": 1,
        }
    )
    assert found == Extras(40, Sampling(-7, 2.0, 0.5))
    assert Extras.read({"brownout_end_at": 1}) == Extras(1, None)


def test_a_seed_alone_samples_at_temperature_1() -> None:
    assert Extras.read({"brownout_seed": 3}) == Extras(None, Sampling(3, temperature=1.0, top_p=1.0))


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"brownout_end_at": 0}, "brownout_end_at", "0"),
        ({"brownout_end_at": "40"}, "brownout_end_at", "'40'"),
        ({"brownout_end_at": True}, "brownout_end_at", "True"),
        ({"brownout_seed": 1.5}, "brownout_seed", "1.5"),
        ({"brownout_seed": 2**63}, "brownout_seed", str(2**63)),
        ({"brownout_seed": 1, "brownout_temperature": 0}, "brownout_temperature", "0.0"),
        ({"brownout_seed": 1, "brownout_temperature": float("nan")}, "brownout_temperature", "nan"),
        ({"brownout_seed": 1, "brownout_temperature": float("inf")}, "brownout_temperature", "inf"),
        ({"brownout_seed": 1, "brownout_top_p": 0}, "brownout_top_p", "0.0"),
        ({"brownout_seed": 1, "brownout_top_p": 1.01}, "brownout_top_p", "1.01"),
        ({"brownout_seed": 1, "brownout_top_p": [1]}, "brownout_top_p", "[1]"),
        ({"brownout_temperature": 1.0}, "brownout_temperature", "1.0"),
        ({"brownout_sed": 1}, "vllm_xargs", "'brownout_sed'"),
    ],
)
def test_refusal_names_field_value_and_mend(arguments: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(ValueError) as refused:
        Extras.read(arguments)
    said = str(refused.value)
    assert f"field {field!r}" in said
    assert value in said
    assert said.count(": ") >= 1
    assert said.rsplit(": ", 1)[1].startswith(("give ", "use "))


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"brownout_end_at": 9}, {"ignore_eos": True}),
        ({"brownout_end_at": 9}, {"min_tokens": 2}),
        ({"brownout_end_at": 9}, {"structured_outputs": object()}),
        ({"brownout_seed": 9}, {"temperature": 0.7}),
        ({"brownout_seed": 9}, {"n": 2}),
        ({"brownout_seed": 9}, {"presence_penalty": 0.5}),
        ({"brownout_seed": 9}, {"frequency_penalty": 0.5}),
        ({"brownout_seed": 9}, {"repetition_penalty": 1.1}),
        ({"brownout_seed": 9}, {"structured_outputs": object()}),
    ],
)
def test_contradiction_with_the_request_is_refused(arguments: dict[str, Any], fields: dict[str, Any]) -> None:
    extras = Extras.read(arguments)
    assert extras is not None
    extras.check_with(request())
    with pytest.raises(ValueError, match=f"field '{next(iter(fields))}'"):
        extras.check_with(request(**fields))


def test_parameters_that_do_not_touch_each_other_go_together() -> None:
    ends = Extras.read({"brownout_end_at": 9})
    draws = Extras.read({"brownout_seed": 9})
    assert ends is not None
    assert draws is not None
    ends.check_with(request(temperature=0.7, n=2, presence_penalty=0.5))
    draws.check_with(request(ignore_eos=True, min_tokens=5))


def test_gateway_refuses_before_a_replica_does_in_the_stream() -> None:
    body = {"model": "m", "prompt": "hello", "stream": True, "vllm_xargs": {"brownout_end_at": 0}}
    with pytest.raises(InvalidRequest, match="brownout_end_at") as refused:
        validate("completions", body)
    assert (refused.value.param, refused.value.status) == ("vllm_xargs", 400)
    passed = validate("completions", body | {"vllm_xargs": {"brownout_end_at": 9, "others": ["x"]}})
    assert isinstance(passed, CompletionRequest)
