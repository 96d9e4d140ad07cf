"""Idempotency keys through the whole gateway: what is answered again, what is refused, and what is never kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour

KEY = {public.HEADER_IDEMPOTENCY_KEY: "8e03978e-40d5-43dd-bc93-6894a57f9324"}
BODY: dict[str, Any] = {"model": MODEL, "prompt": "hello", "max_tokens": 5}
PATH = "/v1/completions"


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(1, store=tmp_path / "store.db", idempotency_lease_s=30) as built:
        await built.profile("naive")
        yield built


async def ask(
    made: Rig, headers: dict[str, str] = KEY, path: str = PATH, **changes: Any
) -> tuple[int, Any, bytes]:
    async with made.http.post(f"{made.url}{path}", json=BODY | changes, headers=headers) as response:
        return response.status, response.headers, await response.read()


def code_of(answer: tuple[int, Any, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_given_again_byte_by_byte_and_computed_once(made: Rig, stream: bool) -> None:
    status, headers, body = await ask(made, stream=stream)
    assert (status, public.HEADER_REPLAYED in headers) == (200, False)
    again_status, again, again_body = await ask(made, stream=stream)
    assert (again_status, again_body) == (200, body)
    assert again[public.HEADER_REPLAYED] == "true"
    for name in ("content-type", public.HEADER_RUNG, public.HEADER_ATTEMPTS, public.HEADER_REPLICA):
        assert again[name] == headers[name]
    assert again[public.HEADER_REQUEST_ID] != headers[public.HEADER_REQUEST_ID]
    assert not stream or body.endswith(b"data: [DONE]\n\n")
    assert len(made.replicas[0].seen) == 1


async def test_without_a_key_or_with_another_one_it_is_another_request(made: Rig) -> None:
    await ask(made)
    await ask(made, {})
    await ask(made, {})
    await ask(made, {public.HEADER_IDEMPOTENCY_KEY: "another"})
    assert len(made.replicas[0].seen) == 4


async def test_while_it_is_under_way_others_are_told_to_wait_and_then_get_the_same(made: Rig) -> None:
    gate = asyncio.Event()
    made.replicas[0].script.append(Behaviour(first_token_gate=gate))
    first = asyncio.ensure_future(ask(made))
    await made.replicas[0].until(lambda: bool(made.replicas[0].seen))
    second = await ask(made)
    assert code_of(second) == (409, "idempotency_in_flight")
    assert int(second[1]["retry-after"]) == 1
    assert second[1][public.HEADER_SHOULD_RETRY] == "true"
    gate.set()
    assert (await ask_until_answered(made))[2] == (await first)[2]
    assert len(made.replicas[0].seen) == 1


async def ask_until_answered(made: Rig, **changes: Any) -> tuple[int, Any, bytes]:
    async with asyncio.timeout(10):
        while (answer := await ask(made, **changes))[0] == 409:  # noqa: ASYNC110 - it has no event of its own
            await asyncio.sleep(0.02)
    return answer


async def test_a_key_belongs_to_one_body(made: Rig) -> None:
    await ask(made)
    assert code_of(await ask(made, max_tokens=6)) == (422, "idempotency_key_reused")
    assert len(made.replicas[0].seen) == 1


async def test_a_malformed_key_is_refused_before_anything_is_done(made: Rig) -> None:
    for key in ("a b", "x" * 256, '"open'):
        answer = await ask(made, {public.HEADER_IDEMPOTENCY_KEY: key})
        assert code_of(answer) == (400, "idempotency_key_malformed")
        assert key not in answer[2].decode()
    assert made.replicas[0].seen == []


async def test_two_keys_are_none(made: Rig) -> None:
    """Whoever stands in front may have read the other one."""
    keys = [(public.HEADER_IDEMPOTENCY_KEY, key) for key in ("a", "b")]
    async with made.http.post(f"{made.url}{PATH}", json=BODY, headers=keys) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "repeated_header")
    assert made.replicas[0].seen == []


async def test_a_gateway_without_a_store_promises_nothing() -> None:
    async with rig(1) as bare:
        assert code_of(await ask(bare)) == (400, "idempotency_unsupported")
        assert bare.replicas[0].seen == []


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_says_nothing_of_the_request_is_not_kept(made: Rig, status: int) -> None:
    made.replicas[0].script.append(Behaviour(status=status))
    assert (await ask(made))[0] >= 429
    assert (await ask_until_answered(made))[0] == 200
    assert len(made.replicas[0].seen) == 2


async def test_a_refusal_of_the_request_itself_is_kept(made: Rig) -> None:
    made.replicas[0].script.append(Behaviour(status=400))
    status, _, body = await ask(made)
    assert status == 400
    again = await ask(made)
    assert (again[0], again[2], again[1][public.HEADER_REPLAYED]) == (400, body, "true")
    assert len(made.replicas[0].seen) == 1


async def test_a_stream_that_was_cut_is_not_kept(made: Rig) -> None:
    made.replicas[0].script.append(Behaviour(cut_after=2))
    status, _, body = await ask(made, stream=True)
    assert status == 200
    assert not body.endswith(b"data: [DONE]\n\n")
    assert b"error" in body
    answer = await ask_until_answered(made, stream=True)
    assert answer[2].endswith(b"data: [DONE]\n\n")
    assert public.HEADER_REPLAYED not in answer[1]


async def test_a_client_that_leaves_frees_its_key_long_before_the_lease_is_over(made: Rig) -> None:
    gate = asyncio.Event()
    made.replicas[0].script.append(Behaviour(token_gate=gate))
    async with made.http.post(f"{made.url}{PATH}", json=BODY | {"stream": True}, headers=KEY) as response:
        await response.content.readany()
    answer = await ask_until_answered(made, stream=True)
    assert answer[2].endswith(b"data: [DONE]\n\n")


async def test_the_end_of_a_stream_is_not_seen_before_it_is_recorded(made: Rig) -> None:
    claims = made.gateway.state.claims
    recording, finish = asyncio.Event(), claims.finish

    async def slowly(*given: Any) -> bool:
        await recording.wait()
        return await finish(*given)

    claims.finish = slowly
    seen = b""
    async with made.http.post(f"{made.url}{PATH}", json=BODY | {"stream": True}, headers=KEY) as response:
        while b'"finish_reason":"' not in seen:
            seen += await response.content.readany()
        assert not seen.endswith(b"data: [DONE]\n\n")
        recording.set()
        assert (seen + await response.read()).endswith(b"data: [DONE]\n\n")


async def test_who_loses_its_claim_in_mid_stream_stops(made: Rig, tmp_path: Path) -> None:
    gate = asyncio.Event()
    made.replicas[0].script.append(Behaviour(token_gate=gate))
    async with made.http.post(f"{made.url}{PATH}", json=BODY | {"stream": True}, headers=KEY) as response:
        await response.content.readany()
        claims = made.gateway.state.claims
        (held,) = list(claims._held)
        claims._lose(held)
        rest = await response.read()
    assert not rest.endswith(b"data: [DONE]\n\n")
    await made.idle()
    assert made.replicas[0].seen[0].left_early


async def test_an_answer_that_is_too_long_to_keep_goes_out_and_is_computed_again(
    made: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.gateway.keyed.MOST_BYTES", 10)
    assert (await ask(made))[0] == 200
    assert public.HEADER_REPLAYED not in (await ask_until_answered(made))[1]
    assert len(made.replicas[0].seen) == 2
