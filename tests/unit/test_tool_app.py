"""The tool over HTTP, as an ASGI application without a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette

from cluster.tool.app import create_app


class Client:
    """Calls an ASGI application; ``leave`` closes the client's end while the answer is awaited."""

    def __init__(self, app: Starlette, root_path: str = "") -> None:
        self.app, self.root_path = app, root_path
        self.leave = asyncio.Event()

    async def call(self, method: str, path: str, body: Any = b"", query: str = "") -> tuple[int, Any]:
        """Return status and JSON body; the body is None when none came (an empty or a cut answer)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent: list[dict[str, Any]] = []
        pending = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop()
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": self.root_path + path,
            "root_path": self.root_path,
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json")],
        }
        await self.app(scope, receive, send)
        text = b"".join(one.get("body", b"") for one in sent[1:])
        return sent[0]["status"], json.loads(text) if text else None


@pytest.fixture
def client() -> Client:
    return Client(create_app(clock=lambda: 5.0))


def rpc(method: str, params: Any, request_id: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, "id": request_id}


def transfer(key: str) -> dict[str, Any]:
    return rpc("submit_transfer", {"from": "a", "to": "b", "amount": "1", "idempotency_key": key})


@pytest.mark.parametrize("root_path", ["", "/tool"])
async def test_reads_a_price_also_below_a_route_prefix(root_path: str) -> None:
    client = Client(create_app(), root_path)
    status, answer = await client.call(
        "POST", "/" if not root_path else "", rpc("get_price", {"symbol": "BTC"})
    )
    assert status == 200
    assert answer["result"]["symbol"] == "BTC"


async def test_effects_can_be_read_out(client: Client) -> None:
    for key in ("k1", "k2", "k1"):
        await client.call("POST", "/", transfer(key))
    _, ledger = await client.call("GET", "/ledger")
    assert [effect["idempotency_key"] for effect in ledger["effects"]] == ["k1", "k2"]
    assert ledger["replays"] == 1
    _, rest = await client.call("GET", "/ledger", query="after=1")
    assert [effect["seq"] for effect in rest["effects"]] == [2]


async def test_place_in_the_ledger_must_be_a_number(client: Client) -> None:
    status, answer = await client.call("GET", "/ledger", query="after=x")
    assert status == 400
    assert "'after'" in answer["error"]


async def test_notifications_get_an_empty_answer(client: Client) -> None:
    notification = {key: value for key, value in transfer("k1").items() if key != "id"}
    assert await client.call("POST", "/", notification) == (204, None)
    _, ledger = await client.call("GET", "/ledger")
    assert len(ledger["effects"]) == 1


async def test_body_that_is_not_json_is_answered_in_the_protocol(client: Client) -> None:
    status, answer = await client.call("POST", "/", b"{")
    assert status == 200
    assert answer["error"]["code"] == -32700


async def test_control_is_set_shown_and_reset(client: Client) -> None:
    status, shown = await client.call("POST", "/control", {"latency_s": 0.5, "methods": ["get_price"]})
    assert status == 200
    assert (shown["latency_s"], shown["methods"], shown["hang"]) == (0.5, ["get_price"], False)
    assert (await client.call("GET", "/control"))[1] == shown
    assert (await client.call("DELETE", "/control"))[1]["latency_s"] == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"latency_s": -1}, "latency_s"),
        ({"error_rate": 1.5}, "error_rate"),
        ({"latency": 1}, "latency"),
        ({"methods": ["get_prices"]}, "get_prices"),
        (b"nonsense", "JSON"),
    ],
)
async def test_bad_control_is_refused_by_name_and_changes_nothing(
    client: Client, body: Any, named: str
) -> None:
    status, answer = await client.call("POST", "/control", body)
    assert status == 400
    assert named in json.dumps(answer)
    assert (await client.call("GET", "/control"))[1]["latency_s"] == 0


async def test_injected_error_keeps_the_ledger_empty(client: Client) -> None:
    await client.call("POST", "/control", {"error_rate": 1})
    _, answer = await client.call("POST", "/", transfer("k1"))
    assert answer["error"]["code"] == -32000
    assert (await client.call("GET", "/ledger"))[1]["effects"] == []


async def test_lost_answer_leaves_the_effect_and_no_body(client: Client) -> None:
    await client.call("POST", "/control", {"lose_answer": True})
    assert (await client.call("POST", "/", transfer("k1")))[1] is None
    await client.call("DELETE", "/control")
    _, again = await client.call("POST", "/", transfer("k1"))
    assert again["result"] == {"seq": 1, "replayed": True}


async def test_client_that_leaves_a_hung_call_ends_it_without_effect(client: Client) -> None:
    await client.call("POST", "/control", {"hang": True})
    leaving = Client(client.app)
    call = asyncio.create_task(leaving.call("POST", "/", transfer("k1")))
    await asyncio.sleep(0)
    leaving.leave.set()
    await call
    await client.call("DELETE", "/control")
    assert (await client.call("GET", "/ledger"))[1]["effects"] == []


async def test_hung_call_is_answered_when_the_fault_is_reset(client: Client) -> None:
    await client.call("POST", "/control", {"hang": True})
    call = asyncio.create_task(client.call("POST", "/", transfer("k1")))
    await asyncio.sleep(0)
    await client.call("DELETE", "/control")
    assert (await call)[1]["result"]["seq"] == 1


async def test_two_tools_share_nothing() -> None:
    first, second = Client(create_app()), Client(create_app())
    await first.call("POST", "/", transfer("k1"))
    assert (await second.call("GET", "/ledger"))[1]["effects"] == []


async def test_is_healthy(client: Client) -> None:
    assert await client.call("GET", "/healthz") == (200, {"status": "ok"})
