"""The tool behind Ray Serve and its link: the same protocol, and faults that reach the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from cluster.public import TOOL_PATH, ClusterState
from tests.fakes.live import look_at

pytestmark = pytest.mark.cluster


class Tool:
    """A client of the tool, through its link."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self.session, self.url = session, f"http://{address}{TOOL_PATH}"

    async def call(self, method: str, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "method": method, "params": params, "id": 1}
        async with self.session.post(self.url, json=message) as response:
            return await response.json()

    async def transfer(self, key: str) -> Any:
        return await self.call("submit_transfer", **{"from": "a", "to": "b"}, amount="5", idempotency_key=key)

    async def control(self, method: str, **faults: Any) -> None:
        async with self.session.request(method, f"{self.url}/control", json=faults or None) as response:
            assert response.status == 200, await response.text()

    async def keys(self) -> list[str]:
        async with self.session.get(f"{self.url}/ledger") as response:
            return [effect["idempotency_key"] for effect in (await response.json())["effects"]]


@pytest.fixture
async def tool(cluster: ClusterState) -> AsyncIterator[Tool]:
    async with look_at(cluster) as live:
        (link,) = await live.links("tool")
        made = Tool(live.session, link["listen"])
        await made.control("DELETE")
        yield made
        await made.control("DELETE")


async def test_answers_behind_its_route_prefix(tool: Tool) -> None:
    assert (await tool.call("get_price", symbol="ETH"))["result"]["symbol"] == "ETH"
    assert (await tool.call("nothing"))["error"]["code"] == -32601


async def test_lost_answer_cuts_the_connection_after_the_effect(
    tool: Tool, request: pytest.FixtureRequest
) -> None:
    key = f"lost-{request.node.name}-{id(tool)}"
    await tool.control("POST", lose_answer=True)
    with pytest.raises(aiohttp.ClientError):
        await tool.transfer(key)
    await tool.control("DELETE")
    assert (await tool.keys()).count(key) == 1
    assert (await tool.transfer(key))["result"]["replayed"] is True
    assert (await tool.keys()).count(key) == 1


async def test_hung_call_whose_client_leaves_has_no_effect(tool: Tool) -> None:
    key = f"hung-{id(tool)}"
    await tool.control("POST", hang=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(tool.transfer(key), 0.5)
    await tool.control("DELETE")
    assert (await tool.call("get_price", symbol="ETH"))["result"]
    assert key not in await tool.keys()
