"""What clients do beyond sending a call once, against servers that lose answers, refuse, and put work off."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from chaos.experiment import CallClass
from chaos.history import CallRecord
from chaos.load.answer import Answer
from chaos.load.client import LoadClient
from chaos.load.habits import pause_s
from chaos.load.prompts import Ask

PAYER = CallClass("payer", 1.0, (8, 8), (4, 4), transfer=True, repeats=True, client_deadline_s=5.0)
WAITER = CallClass("waiter", 1.0, (8, 8), (4, 4), respond_async=True, api_key="w", result_within_s=5.0)
WHOLE = {
    "choices": [{"message": {"content": "four words it is"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 4},
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(**routes: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", routes["post"])
    if "get" in routes:
        app.router.add_get("/v1/jobs/{rest:.*}", routes["get"])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def made(url: str, of: CallClass, **options: object) -> CallRecord:
    asked = Ask("hello", 4, stream=False, transfer=of.transfer, call_class=of)
    async with LoadClient(url, "tiny", 5.0, {"w": "bo_w"}) as client:
        return await client.call(asked, "arm", 0, 0.0, time.time(), "call-0", **options)  # type: ignore[arg-type]


async def test_a_lost_answer_is_asked_for_again_with_the_same_key_under_another_id() -> None:
    seen: list[web.Request] = []

    async def post(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        body = await request.json()
        assert body["tool_call"]["params"]["from"] == "call-0"
        assert body["tool_call"]["optional"] is False
        if len(seen) == 1:
            assert request.transport is not None
            request.transport.close()
        if len(seen) == 2:
            return web.json_response({"error": {"type": "busy"}}, status=409, headers={"retry-after": "0"})
        return web.json_response(WHOLE)

    async with serving(post=post) as url:
        record = await made(url, PAYER)
    assert record.outcome == "ok"
    assert [r.headers["idempotency-key"] for r in seen] == ["key-call-0"] * 3
    assert [r.headers["x-request-id"] for r in seen] == ["call-0", "call-0.2", "call-0.3"]
    assert [one["status"] for one in record.tries] == [0, 409, 200]
    assert record.tries[0]["error_type"] == "connection"
    assert record.effect == "call-0"


@pytest.mark.parametrize(("clients", "keys"), [("once", 1), ("new_keys", 2)])
async def test_an_arm_can_take_the_habit_away_or_the_key(clients: str, keys: int) -> None:
    seen: list[str] = []

    async def post(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["idempotency-key"])
        if len(seen) == 1:
            return web.json_response({"error": {"type": "lost"}}, status=502)
        return web.json_response(WHOLE)

    async with serving(post=post) as url:
        record = await made(url, PAYER, clients=clients)
    assert len(set(seen)) == len(seen) == keys
    assert record.outcome == ("failed" if clients == "once" else "ok")


def answer(status: int, **says: object) -> Answer:
    found = Answer(status=status)
    for name, value in says.items():
        setattr(found, name, value)
    return found


def test_what_is_final_is_not_repeated() -> None:
    assert pause_s(answer(200, finish_reason="stop"), 1) is None
    assert pause_s(answer(422), 1) is None
    assert pause_s(answer(502, should_retry="false"), 1) is None
    assert pause_s(answer(200, error_type="cut"), 1) == 0.25
    assert pause_s(answer(0), 3) == 1.0
    assert pause_s(answer(503, retry_after_s=60.0), 1) == 2.0


async def test_a_job_is_followed_to_its_result() -> None:
    looks: list[str] = []

    async def post(request: web.Request) -> web.StreamResponse:
        assert request.headers["prefer"] == "respond-async"
        assert request.headers["authorization"] == "Bearer bo_w"
        return web.json_response({}, status=202, headers={"location": "/v1/jobs/j1"})

    async def get(request: web.Request) -> web.StreamResponse:
        looks.append(request.match_info["rest"])
        assert request.headers["authorization"] == "Bearer bo_w"
        if request.match_info["rest"] == "j1/result":
            return web.json_response(WHOLE)
        return web.json_response({"status": "queued" if len(looks) == 1 else "done"})

    async with serving(post=post, get=get) as url:
        record = await made(url, WAITER)
        async with LoadClient(url, "tiny", 5.0, {"w": "bo_w"}) as client:
            assert await client.job(record) == ("done", "", record.text_sha)
    assert (record.outcome, record.status, record.job) == ("deferred_done", 202, "/v1/jobs/j1")
    assert record.accepted_at is not None
    assert record.output_tokens == 4
    assert looks[:3] == ["j1", "j1", "j1/result"]


@pytest.mark.parametrize(
    ("state", "outcome", "error_type"),
    [("failed", "failed", "job_failed"), ("running", "deferred", "deferred")],
)
async def test_a_job_without_a_result_is_told_from_a_call_that_failed(
    state: str, outcome: str, error_type: str
) -> None:
    async def post(request: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=202, headers={"location": "/v1/jobs/j1"})

    async def get(request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": state, "reason": "no_replica"})

    hurried = CallClass("waiter", 1.0, (8, 8), (4, 4), respond_async=True, result_within_s=0.3)
    async with serving(post=post, get=get) as url:
        record = await made(url, hurried)
    assert (record.outcome, record.error_type) == (outcome, error_type)
