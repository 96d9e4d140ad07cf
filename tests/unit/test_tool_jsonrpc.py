"""The JSON-RPC 2.0 protocol, example by example as its specification gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.tool import jsonrpc
from cluster.tool.jsonrpc import RpcError


async def subtract(params: Any) -> Any:
    if isinstance(params, dict):
        return params["minuend"] - params["subtrahend"]
    return params[0] - params[1]


async def fail(params: Any) -> Any:
    raise RpcError(-32050, "No", {"why": params})


class Calls:
    """Remembers what was called, so that notifications can be seen."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.methods = {"subtract": subtract, "fail": fail, "note": self.note, "none": self.none}

    async def note(self, params: Any) -> Any:
        self.seen.append(params)
        return "noted"

    async def none(self, params: Any) -> Any:
        return None


async def ask(message: Any, calls: Calls | None = None) -> Any:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return await jsonrpc.answer(body, (calls or Calls()).methods)


@pytest.mark.parametrize("params", [[42, 23], {"subtrahend": 23, "minuend": 42}])
async def test_parameters_by_position_and_by_name(params: Any) -> None:
    answer = await ask({"jsonrpc": "2.0", "method": "subtract", "params": params, "id": 1})
    assert answer == {"jsonrpc": "2.0", "result": 19, "id": 1}


@pytest.mark.parametrize("request_id", [0, 7, 1.5, "abc", "", None])
async def test_answer_carries_the_id_as_it_came(request_id: Any) -> None:
    answer = await ask({"jsonrpc": "2.0", "method": "subtract", "params": [3, 1], "id": request_id})
    assert answer == {"jsonrpc": "2.0", "result": 2, "id": request_id}
    assert type(answer["id"]) is type(request_id)


async def test_absent_parameters_are_allowed() -> None:
    calls = Calls()
    await ask({"jsonrpc": "2.0", "method": "note", "id": 1}, calls)
    assert calls.seen == [None]


async def test_result_null_is_still_an_answer() -> None:
    assert await ask({"jsonrpc": "2.0", "method": "none", "id": 1}) == {
        "jsonrpc": "2.0",
        "result": None,
        "id": 1,
    }


async def test_notification_runs_and_gets_no_answer() -> None:
    calls = Calls()
    assert await ask({"jsonrpc": "2.0", "method": "note", "params": [1]}, calls) is None
    assert calls.seen == [[1]]


@pytest.mark.parametrize("method", ["fail", "missing"])
async def test_notification_that_fails_gets_no_answer_either(method: str) -> None:
    assert await ask({"jsonrpc": "2.0", "method": method, "params": []}) is None


async def test_unknown_method_names_those_that_exist() -> None:
    answer = await ask({"jsonrpc": "2.0", "method": "foobar", "id": "1"})
    assert answer["id"] == "1"
    assert answer["error"]["code"] == -32601
    assert "'foobar'" in answer["error"]["data"]
    assert "subtract" in answer["error"]["data"]


async def test_error_of_a_method_reaches_the_caller_whole() -> None:
    answer = await ask({"jsonrpc": "2.0", "method": "fail", "params": ["x"], "id": 5})
    assert answer == {
        "jsonrpc": "2.0",
        "error": {"code": -32050, "message": "No", "data": {"why": ["x"]}},
        "id": 5,
    }


@pytest.mark.parametrize(
    "body", [b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar"]', b"", b"\xff\xfe"]
)
async def test_what_is_not_json_is_a_parse_error_without_id(body: bytes) -> None:
    answer = await ask(body)
    assert answer["error"]["code"] == -32700
    assert answer["id"] is None


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": 1, "params": "bar"},
        {"jsonrpc": "1.0", "method": "note", "id": 1},
        {"method": "note", "id": 1},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "method": "note", "params": "bar", "id": 1},
        {"jsonrpc": "2.0", "method": "note", "params": None, "id": 1},
        {"jsonrpc": "2.0", "method": "note", "id": {}},
        {"jsonrpc": "2.0", "method": "note", "id": True},
        "note",
        1,
        None,
    ],
)
async def test_what_is_not_a_request_is_refused_and_not_run(message: Any) -> None:
    calls = Calls()
    answer = await ask(message, calls)
    assert answer["error"]["code"] == -32600
    assert answer["jsonrpc"] == "2.0"
    assert calls.seen == []


async def test_refusal_carries_the_id_when_there_is_a_valid_one() -> None:
    assert (await ask({"jsonrpc": "1.0", "method": "note", "id": 9}))["id"] == 9
    assert (await ask({"jsonrpc": "2.0", "method": "note", "id": []}))["id"] is None


async def test_empty_batch_is_one_refusal() -> None:
    answer = await ask([])
    assert isinstance(answer, dict)
    assert answer["error"]["code"] == -32600


async def test_invalid_batch_is_refused_element_by_element() -> None:
    answers = await ask([1, 2, 3])
    assert [one["error"]["code"] for one in answers] == [-32600] * 3


async def test_mixed_batch_is_answered_in_order_without_its_notifications() -> None:
    calls = Calls()
    answers = await ask(
        [
            {"jsonrpc": "2.0", "method": "subtract", "params": [5, 1], "id": "1"},
            {"jsonrpc": "2.0", "method": "note", "params": [7]},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "missing", "id": "5"},
            {"jsonrpc": "2.0", "method": "note", "params": [8], "id": "9"},
        ],
        calls,
    )
    assert [one["id"] for one in answers] == ["1", None, "5", "9"]
    assert [one.get("error", {}).get("code") for one in answers] == [None, -32600, -32601, None]
    assert calls.seen == [[7], [8]]


async def test_batch_of_notifications_gets_no_answer() -> None:
    calls = Calls()
    assert await ask([{"jsonrpc": "2.0", "method": "note", "params": [n]} for n in (1, 2)], calls) is None
    assert calls.seen == [[1], [2]]
