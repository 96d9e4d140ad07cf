"""Fault 21: a hung tool without a deadline holds requests for hours; redelivery doubles a side effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.real_tool import real_tool
from tests.fakes.replica import MODEL
from tests.fakes.tool import fake_tool

CALLS = 6


async def ask(made: Rig, optional: bool) -> tuple[int, str]:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "price?"}],
        "max_tokens": 2,
        "tool_call": {"method": "get_price", "params": {"symbol": "BTC"}, "optional": optional},
    }
    async with made.http.post(f"{made.url}/v1/chat/completions", json=body) as response:
        return response.status, response.headers.get(public.HEADER_TOOL, "")


@pytest.mark.parametrize("optional", [True, False])
async def test_a_tool_that_never_answers_holds_no_call_and_no_permit(optional: bool) -> None:
    async with fake_tool() as tool, rig(1, tool_deadline_s=0.5) as made:
        made.gateway.discovery.tool_address = tool.address
        tool.gate = asyncio.Event()
        asking = [asyncio.ensure_future(ask(made, optional)) for _ in range(CALLS)]
        await made.until(lambda: len(tool.calls) == CALLS)
        admission = made.gateway.pipeline.admission
        assert admission is not None
        assert admission.in_use() == 0, "nobody holds a batch slot while a tool is awaited"
        answers = await asyncio.gather(*asking)
        assert {tool for _, tool in answers} == {"deadline"}
        assert {status for status, _ in answers} == ({200} if optional else {504})
        assert len(tool.calls) == CALLS, "each was asked once, and never again"
        assert not tool.gate.is_set()


async def test_without_the_deadline_its_calls_wait_as_long_as_it_hangs() -> None:
    async with fake_tool() as tool, rig(1, tool_deadline_s=0.5) as made:
        made.gateway.discovery.tool_address = tool.address
        await made.profile("naive")
        tool.gate = asyncio.Event()
        asking = [asyncio.ensure_future(ask(made, True)) for _ in range(CALLS)]
        await made.until(lambda: len(tool.calls) == CALLS)
        done, _ = await asyncio.wait(asking, timeout=1.5)
        assert not done
        tool.gate.set()
        assert {tool for _, tool in await asyncio.gather(*asking)} == {"ok"}


async def pay(made: Rig) -> int:
    """Ask for a transfer under one key, again and again while the one before is under way; return the status."""
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": "pay",
        "max_tokens": 2,
        "tool_call": {"method": "submit_transfer", "params": {"from": "a", "to": "b", "amount": "1"}},
    }
    headers = {public.HEADER_IDEMPOTENCY_KEY: "the-same"}
    async with asyncio.timeout(20):
        while True:
            async with made.http.post(f"{made.url}/v1/completions", json=body, headers=headers) as response:
                if response.status != 409:
                    return response.status
            await asyncio.sleep(0.02)


async def test_redelivery_while_a_tool_hangs_and_after_it_doubles_nothing(tmp_path: Path) -> None:
    async with real_tool() as tool, rig(1, store=tmp_path / "store.db", tool_deadline_s=0.3) as made:
        made.gateway.discovery.tool_address = tool.address
        await tool.control(latency_s=0.6, methods=["submit_transfer"])
        assert await pay(made) == 502, "its outcome is not known yet, and the client is told so"
        await tool.control(lose_answer=True, methods=["submit_transfer"])
        assert {await pay(made) for _ in range(3)} == {200}
        assert len(await tool.effects()) == 1


async def test_redelivery_by_a_client_that_left_doubles_nothing(tmp_path: Path) -> None:
    async with real_tool() as tool, rig(1, store=tmp_path / "store.db", tool_deadline_s=5) as made:
        made.gateway.discovery.tool_address = tool.address
        await tool.control(latency_s=0.3, methods=["submit_transfer"])
        for _ in range(3):
            asking = asyncio.ensure_future(pay(made))
            await made.until(lambda: bool(made.gateway.calls))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert await pay(made) == 200
        assert len(await tool.effects()) == 1
