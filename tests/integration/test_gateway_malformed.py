"""Malformed requests over HTTP: the right status, the OpenAI error shape, and no replica ever sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL
from tests.unit.test_gateway_requests import MALFORMED

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
JSON = {"content-type": "application/json"}


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(1, max_body_bytes=100_000) as built:
        yield built


async def refused(made: Rig, method: str, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Send a request; return status and error after checking what every refusal has in common."""
    async with made.http.request(method, made.url + path, **options) as response:
        body = await response.json()
        assert response.headers["content-type"] == "application/json"
        assert "x-request-id" in response.headers
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert made.replicas[0].seen == []
    await made.idle()
    return response.status, body["error"]


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("POST", CHAT, {"data": b"{not json", "headers": JSON}, 400, "invalid_json"),
        ("POST", CHAT, {"data": b"", "headers": JSON}, 400, "invalid_json"),
        ("POST", CHAT, {"data": b"[1]", "headers": JSON}, 400, "invalid_type"),
        ("POST", CHAT, {"data": b"\xff\xfe\x00", "headers": JSON}, 400, "invalid_json"),
        ("POST", CHAT, {"data": b"[" * 90_000, "headers": JSON}, 400, "invalid_json"),
        ("POST", CHAT, {"data": GOOD.replace(b"hi", b"\\ud800"), "headers": JSON}, 400, "invalid_json"),
        ("POST", CHAT, {"data": GOOD.replace(b"hi", b"\xed\xa0\x80"), "headers": JSON}, 400, "invalid_json"),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {"content-type": "text/plain"}},
            415,
            "invalid_content_type",
        ),
        ("POST", CHAT, {"data": b"x" * 100_001, "headers": JSON}, 413, "request_too_large"),
        ("GET", CHAT, {}, 405, "method_not_allowed"),
        ("DELETE", TEXT, {}, 405, "method_not_allowed"),
        ("POST", "/v1/models", {}, 405, "method_not_allowed"),
        ("GET", "/", {}, 404, "unknown_url"),
        ("POST", "/v1/embeddings", {"data": GOOD, "headers": JSON}, 404, "unknown_url"),
        ("GET", "/admin/inflight", {}, 404, "unknown_url"),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {**JSON, "x-brownout-deadline-s": "soon"}},
            400,
            "invalid_value",
        ),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {**JSON, "x-brownout-deadline-s": "-1"}},
            400,
            "invalid_value",
        ),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {**JSON, "x-brownout-deadline-s": "nan"}},
            400,
            "invalid_value",
        ),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {**JSON, "x-brownout-deadline-s": "1_0"}},
            400,
            "invalid_value",
        ),
        (
            "POST",
            CHAT,
            {"data": GOOD, "headers": {**JSON, "x-brownout-deadline-s": "1e9"}},
            400,
            "invalid_value",
        ),
    ],
)
async def test_the_request_itself(
    made: Rig, method: str, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    got, error = await refused(made, method, path, **options)
    assert (got, error["code"]) == (status, code)
    assert error["type"] == "invalid_request_error"


async def test_its_fields(made: Rig) -> None:
    for api, body, param in MALFORMED:
        if param == "__ok__":
            continue
        status, error = await refused(made, "POST", CHAT if api == "chat" else TEXT, json=body)
        assert status == 400, body
        assert error["type"] == "invalid_request_error"
        assert (error["param"] or "").startswith(param or "")


async def test_a_body_that_turns_out_too_large_as_it_comes(made: Rig) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"x" * 1000

    async with made.http.post(made.url + CHAT, data=pieces(), headers=JSON) as response:
        assert response.status == 413
    assert made.replicas[0].seen == []


async def test_prompts_longer_than_the_context(made: Rig) -> None:
    """Token ids are counted exactly even where no tokenizer is at hand."""
    for tokens, limit, status in ((4095, 1, 200), (4095, 2, 400), (5000, 1, 400)):
        body = {"model": MODEL, "prompt": [5] * tokens, "max_tokens": limit}
        async with made.http.post(made.url + TEXT, json=body) as response:
            assert response.status == status
            if status == 400:
                assert (await response.json())["error"]["code"] == "context_length_exceeded"
    assert len(made.replicas[0].seen) == 1


async def test_a_body_that_never_arrives_is_given_up_when_the_client_leaves(made: Rig) -> None:
    host, port = made.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await made.until(lambda: [event["outcome"] for event in made.events("call_ended")] == ["cancelled"])
    await made.idle()


async def test_refused_requests_are_counted_as_invalid(made: Rig) -> None:
    await refused(made, "POST", CHAT, json={"model": MODEL})
    assert [event["outcome"] for event in made.events("call_ended")] == ["invalid"]
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        assert 'brownout_calls_total{outcome="invalid"} 1.0' in await response.text()
