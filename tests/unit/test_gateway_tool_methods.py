"""What the gateway knows of the tool's methods, and the points at which a test lets it die."""

from __future__ import annotations

import pytest

from cluster.gateway import crash_points
from cluster.gateway.crash_points import POINTS, CrashPointError, armed
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.schema import CompletionRequest, validate
from cluster.gateway.steps import StepKey
from cluster.gateway.tools import METHODS, steps_of
from cluster.tool.ledger import Ledger
from cluster.tool.methods import table

PRICE = {"method": "get_price", "params": {"symbol": "BTC"}}


def request(**changes: object) -> CompletionRequest:
    made = validate("completions", {"model": "m", "prompt": "x"} | changes)
    assert isinstance(made, CompletionRequest)
    return made


def test_the_gateway_knows_the_methods_that_the_tool_has() -> None:
    assert set(METHODS) == set(table(Ledger(lambda: 0.0)))


@pytest.mark.parametrize("method", [one for one in METHODS.values() if one.lookup], ids=lambda one: one.name)
def test_what_looks_up_only_reads(method) -> None:
    assert method.effect
    assert not METHODS[method.lookup].effect


def test_steps_are_named_by_their_place_and_the_single_one_comes_first() -> None:
    steps = steps_of(request(tool_call=PRICE, tool_calls=[PRICE | {"when": "after"}, PRICE]))
    assert [(step.name, step.call.when) for step in steps] == [
        ("tool-0", "before"),
        ("tool-1", "after"),
        ("tool-2", "before"),
    ]


def test_an_error_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        steps_of(request(tool_calls=[PRICE, {"method": "rm"}]))
    assert caught.value.param == "tool_calls.1.method"
    with pytest.raises(InvalidRequest) as caught:
        request(tool_calls=[PRICE] * 9)
    assert caught.value.param == "tool_calls"


def test_each_step_of_each_request_has_a_key_of_its_own_that_never_changes() -> None:
    given = [("a", "tool-0"), ("a", "tool-1"), ("b", "tool-0")]
    keys = [StepKey.of(scope, step, "submit_transfer", {}).tool_key for scope, step in given]
    assert len(set(keys)) == 3
    again = StepKey.of("a", "tool-0", "submit_transfer", {"amount": "2"})
    assert again.tool_key == keys[0]
    assert again.call_digest != StepKey.of("a", "tool-0", "submit_transfer", {}).call_digest


def test_a_gateway_dies_the_nth_time_at_the_point_that_is_named_and_nowhere_else() -> None:
    deaths: list[int] = []
    reached = armed("tool_acted:2", lambda: deaths.append(1))
    for point in (*POINTS, *POINTS, *POINTS):
        reached(point)
    assert deaths == [1]


@pytest.mark.parametrize("value", [None, ""])
def test_by_default_nothing_is_armed(value: str | None) -> None:
    assert armed(value, pytest.fail) is crash_points.reached


@pytest.mark.parametrize("value", ["nowhere", "tool_acted:0", "tool_acted:x", ":1"])
def test_a_point_that_does_not_exist_is_refused(value: str) -> None:
    with pytest.raises(CrashPointError, match="tool_acted"):
        armed(value, lambda: None)
