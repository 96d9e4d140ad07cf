"""The load client against a small server of real sockets that misbehaves in every way that was seen elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from chaos.history import CallRecord
from chaos.load.client import LoadClient, request_body
from chaos.load.plan import PlannedCall
from chaos.load.prompts import Ask

STREAM = Ask("a question", max_tokens=3, stream=True)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def stream(request: web.Request, events: list, *, cut: bool = False) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={
            "content-type": "text/event-stream",
            "x-brownout-replica": "replica-0.a",
            "x-brownout-attempts": "2",
        }
    )
    await response.prepare(request)
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        await response.write(f"data: {text}\n\n".encode())
    if cut:
        assert request.transport is not None
        request.transport.abort()
    return response


def chunk(text: str, finish: str | None = None) -> dict:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
COMPLETE = [chunk("a"), chunk(" b"), chunk(" c", "length"), USAGE, "[DONE]"]


def sending(events: list, *, cut: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, events, cut=cut)

    return handler


async def call(handler: Handler, asked: Ask = STREAM, deadline_s: float = 5.0) -> CallRecord:
    async with serving(handler) as url, LoadClient(url, "tiny", deadline_s) as client:
        return await client.call(asked, "control", 0, 0.0, time.time(), "id-0")


async def test_a_complete_stream_is_recorded_token_by_token() -> None:
    record = await call(sending(COMPLETE))
    assert (record.outcome, record.status, record.output_tokens, record.prompt_tokens) == ("ok", 200, 3, 9)
    assert (record.replica, record.attempts, record.done, record.finish_reason) == (
        "replica-0.a",
        2,
        True,
        "length",
    )
    assert len(record.token_at) == 3
    assert record.headers_at is not None
    assert record.scheduled_at <= record.sent_at <= record.headers_at <= record.token_at[0] <= record.ended_at
    assert record.first_token_at == record.token_at[0]


@pytest.mark.parametrize(
    ("events", "cut", "error_type"),
    [
        pytest.param(COMPLETE[:2], True, "cut", id="connection cut"),
        pytest.param(COMPLETE[:-1], False, "cut", id="ended without DONE"),
        pytest.param([chunk("a", "abort"), USAGE, "[DONE]"], False, "abort", id="aborted"),
        pytest.param(
            [chunk("a"), {"error": {"type": "upstream_lost"}}], False, "upstream_lost", id="error event"
        ),
        pytest.param(
            [chunk("a"), {"error": {"type": "upstream_lost"}}], True, "upstream_lost", id="event, then cut"
        ),
    ],
)
async def test_a_stream_that_is_not_whole_failed(events: list, cut: bool, error_type: str) -> None:
    record = await call(sending(events, cut=cut))
    assert (record.outcome, record.error_type, record.status) == ("failed", error_type, 200)
    assert record.first_token_at is not None


async def test_a_refusal_is_counted_apart_and_not_repeated() -> None:
    seen = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request)
        error = {"error": {"type": "overloaded", "message": "later"}}
        return web.json_response(error, status=503, headers={"retry-after": "1"})

    record = await call(refuse)
    assert (record.outcome, record.error_type, record.status) == ("refused", "overloaded", 503)
    assert len(seen) == 1


async def test_a_failure_is_never_retried() -> None:
    seen = []

    async def fail(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    record = await call(fail)
    assert (record.outcome, record.error_type, record.status) == ("failed", "connection", 0)
    assert len(seen) == 1


async def test_a_hang_ends_at_the_clients_deadline_and_the_server_sees_the_client_leave() -> None:
    left = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError("unreachable")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", hang)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with LoadClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "tiny", 0.2) as client:
        record = await client.call(STREAM, "control", 0, 0.0, time.time(), "id-0")
        async with asyncio.timeout(5):
            await left.wait()
    await runner.cleanup()
    assert (record.outcome, record.error_type) == ("late", "late")
    assert record.first_token_at is None


async def test_the_deadline_counts_from_the_scheduled_time() -> None:
    async with (
        serving(sending(COMPLETE)) as url,
        LoadClient(url, "tiny", 1.0) as client,
    ):
        record = await client.call(STREAM, "control", 0, 0.0, time.time() - 5, "id-0")
    assert record.outcome == "late"


async def test_nobody_listens() -> None:
    async with serving(sending(COMPLETE)) as url:
        pass
    async with LoadClient(url, "tiny", 5.0) as client:
        record = await client.call(STREAM, "control", 0, 0.0, time.time(), "id-0")
    assert (record.outcome, record.error_type, record.status) == ("failed", "connection", 0)


async def test_open_loop_a_stalled_service_gets_every_arrival_at_its_time() -> None:
    arrived: list[float] = []
    release = asyncio.Event()
    peers: set[object] = set()

    async def stalled(request: web.Request) -> web.StreamResponse:
        arrived.append(time.time())
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        if len(arrived) == 30:
            release.set()  # the last one has come although none was answered
        await release.wait()
        return await stream(request, COMPLETE)

    records: list[CallRecord] = []
    calls = [PlannedCall(n, n * 0.005, STREAM) for n in range(30)]
    async with serving(stalled) as url, LoadClient(url, "tiny", 20.0) as client:
        start_at = time.time() + 0.05
        await client.run(calls, "naive", start_at, "run", records.append)
    assert [r.outcome for r in records] == ["ok"] * 30
    assert len(peers) == 30, "every call has a connection of its own"
    by_number = sorted(records, key=lambda r: r.n)
    assert [r.request_id for r in by_number[:2]] == ["run-00000", "run-00001"]
    for record in by_number:
        assert record.scheduled_at == pytest.approx(start_at + record.offset_s)
        assert record.sent_at >= record.scheduled_at - 0.001


def test_the_request_is_plain_openai_with_a_known_length() -> None:
    body = request_body(Ask("hello", 5, stream=True, tool_symbol="ETH"), "tiny")
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_call": {"method": "get_price", "params": {"symbol": "ETH"}, "optional": True},
    }
    assert "stream_options" not in request_body(Ask("hello", 5, stream=False), "tiny")
