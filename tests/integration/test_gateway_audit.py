"""The audit through the whole gateway: who asked for what is on disk before anything is done, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Connection, select

from cluster import public
from cluster.gateway.api_keys import new_key
from cluster.gateway.audit_reading import of_request, verify
from cluster.gateway.audit_record import COLUMNS, Record, body_of
from cluster.gateway.store.opening import open_store
from cluster.gateway.store.store import Store, StoreUnavailable
from cluster.gateway.store.tables import AUDIT
from tests.fakes.gateway import Rig, rig
from tests.fakes.links import FakeLinks
from tests.fakes.replica import MODEL, Behaviour, fake_replica
from tests.ports import free_ports

SECRET_WORDS = "the-swordfish-is-in-the-cellar"
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": SECRET_WORDS}],
    "max_tokens": 5,
}
PATH = "/v1/chat/completions"
KEY = new_key()
TENANTS = f"""
salt_secret = "0123456789abcdef0123456789abcdef"
[tenants.acme]
models = ["{MODEL}"]
priority_ceiling = "critical"
[[tenants.acme.principals.web.keys]]
id = "{KEY.id}"
sha256 = "{KEY.digest}"
[tenants.poor]
models = ["another"]
"""


class Severed:
    """A store that can be taken away."""

    def __init__(self, store: Store) -> None:
        self.kind, self._store, self.away = store.kind, store, False

    async def write(self, work: Any) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        return await self._store.write(work)

    async def read(self, work: Any) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        return await self._store.read(work)

    async def close(self) -> None:
        await self._store.close()


@pytest.fixture
async def store(tmp_path: Path) -> Severed:
    opened = await open_store(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)
    assert opened is not None
    return Severed(opened)


@pytest.fixture
async def made(store: Severed) -> AsyncIterator[Rig]:
    async with rig(1, store=store) as built:
        yield built


@pytest.fixture
async def keyed(store: Severed, tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway that asks for keys."""
    file = tmp_path / "tenants.toml"
    file.write_text(TENANTS)
    file.chmod(0o600)
    async with rig(1, store=store, tenants_file=str(file)) as built:
        yield built


def everything(connection: Connection) -> list[Record]:
    columns = [AUDIT.c[name] for name in COLUMNS]
    return [Record(*row) for row in connection.execute(select(*columns).order_by(AUDIT.c.chain, AUDIT.c.seq))]


async def pair(made: Rig, store: Severed, request_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the bodies of both records of a request, once they are there."""
    await made.until(lambda: made.gateway.state.audit.waiting == 0)
    records = await store.read(of_request(request_id))
    assert [record.kind for record in records] == ["open", "close"], "one pair a request"
    opened, closed = records
    return body_of(opened), body_of(closed)


def named(request_id: str, **more: str) -> dict[str, str]:
    return {public.HEADER_REQUEST_ID: request_id, **more}


def bearer(request_id: str, key: str = KEY.text) -> dict[str, str]:
    return named(request_id, authorization=f"Bearer {key}")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answered_call_is_one_pair_that_says_who_what_and_how(
    keyed: Rig, store: Severed, stream: bool
) -> None:
    async with keyed.http.post(
        keyed.url + PATH, json={**CHAT, "stream": stream}, headers=bearer("r1")
    ) as answer:
        assert answer.status == 200
        await answer.read()
    opened, closed = await pair(keyed, store, "r1")
    assert (
        opened.items()
        >= {
            "tenant": "acme",
            "principal": "web",
            "key_id": KEY.id,
            "method": "POST",
            "path": PATH,
            "model": MODEL,
            "priority": "critical",
            "prompt_chars": len(SECRET_WORDS),
            "decision": "allowed",
        }.items()
    )
    assert len(opened["body_digest"]) == 64
    assert (
        closed.items()
        >= {
            "outcome": "ok",
            "status": 200,
            "rung": "full",
            "attempts": 1,
            "replica": "replica-0.a",
            "completion_tokens": 5,
        }.items()
    )
    assert closed["seconds"] >= 0


async def test_an_answer_of_before_is_recorded_with_where_it_came_from(store: Severed) -> None:
    async with rig(1, store=store, cacheable_classes="summary", cache_lookup_s=30.0) as made:

        async def asked(request_id: str, **headers: str) -> dict[str, Any]:
            sent = named(request_id, **headers)
            async with made.http.post(
                made.url + PATH, json={**CHAT, "temperature": 0}, headers=sent
            ) as answer:
                assert answer.status == 200
                assert (public.HEADER_RUNG in answer.headers) == (request_id != "hit")
                await answer.read()
            closed = (await pair(made, store, request_id))[1]
            return {name: closed.get(name) for name in ("outcome", "reason", "attempts", "rung")}

        cached, keyed = {public.HEADER_CLASS: "summary"}, {public.HEADER_IDEMPOTENCY_KEY: "one"}
        computed = {"outcome": "ok", "reason": None, "attempts": 1, "rung": "full"}
        taken = {"outcome": "ok", "attempts": 0, "rung": None}
        assert await asked("made", **cached) == computed
        assert await asked("hit", **cached) == taken | {"reason": "cache_hit"}
        assert await asked("first", **keyed) == computed
        assert await asked("again", **keyed) == taken | {"reason": "replayed"}
        assert len(made.replicas[0].seen) == 2


async def test_who_leaves_while_sending_is_recorded(keyed: Rig, store: Severed) -> None:
    host, port = keyed.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = [f"POST {PATH} HTTP/1.1", "host: x", "content-type: application/json", "content-length: 100"]
    head += [f"{name}: {value}" for name, value in bearer("r1").items()]
    writer.write("\r\n".join([*head, "", "{"]).encode())
    await writer.drain()
    writer.close()
    await keyed.until(lambda: bool(keyed.events("call_ended")))
    opened, closed = await pair(keyed, store, "r1")
    assert (opened["principal"], opened["decision"]) == ("web", "client_left")
    assert (closed["outcome"], closed["reason"], "status" in closed) == ("cancelled", "client_left", False)


async def test_a_request_that_fails_in_the_gateway_before_anything_is_done_is_recorded(
    made: Rig, store: Severed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("cluster.gateway.completions.validate", fails)
    async with made.http.post(made.url + PATH, json=CHAT, headers=named("r1")) as answer:
        assert answer.status == 500
    opened, closed = await pair(made, store, "r1")
    assert (opened["decision"], closed["outcome"], closed["status"]) == ("runtime_error", "failed", 500)


async def test_a_caller_is_not_told_what_the_store_said(made: Rig, store: Severed) -> None:
    store.away = True
    async with made.http.post(made.url + PATH, json=CHAT) as answer:
        assert answer.status == 503
        assert "the store is away" not in await answer.text(), "it names files, hosts and users"


async def test_neither_prompts_nor_secrets_are_in_any_record(keyed: Rig, store: Severed) -> None:
    for number, key in enumerate((KEY.text, KEY.text[:-1] + ("0" if KEY.text[-1] != "0" else "1"))):
        await keyed.http.post(keyed.url + PATH, json=CHAT, headers=bearer(f"r{number}", key))
        await keyed.http.post(
            keyed.url + PATH, json={**CHAT, "messages": SECRET_WORDS}, headers=bearer("bad", key)
        )
    await keyed.until(lambda: keyed.gateway.state.audit.waiting == 0)
    records = await store.read(everything)
    assert len(records) == 9
    text = " ".join(record.body for record in records)
    assert SECRET_WORDS not in text
    assert KEY.secret[:-1] not in text
    assert KEY.digest not in text


REFUSED = [
    ({"authorization": "Bearer nobody"}, CHAT, 401, ""),
    ({}, CHAT, 401, ""),
    ({"authorization": f"Bearer {KEY.text}"}, {**CHAT, "max_tokens": 0}, 400, "acme"),
    ({"authorization": f"Bearer {KEY.text}"}, {**CHAT, "model": "nothing"}, 404, "acme"),
    ({"authorization": f"Bearer {KEY.text}", public.HEADER_TENANT: "other"}, CHAT, 403, "acme"),
    ({"authorization": f"Bearer {KEY.text}", public.HEADER_PRIORITY: "critical_plus"}, CHAT, 403, "acme"),
    (
        {"authorization": f"Bearer {KEY.text}"},
        {**CHAT, "messages": [{"role": "user", "content": "x" * 9000}]},
        413,
        "acme",
    ),
]


@pytest.mark.parametrize(("headers", "body", "status", "tenant"), REFUSED)
async def test_a_refused_call_is_one_pair_too(
    keyed: Rig, store: Severed, headers: dict[str, str], body: dict[str, Any], status: int, tenant: str
) -> None:
    keyed.gateway.settings = keyed.gateway.settings.model_copy(update={"max_body_bytes": 8000})
    async with keyed.http.post(keyed.url + PATH, json=body, headers=named("r1", **headers)) as answer:
        assert answer.status == status, await answer.text()
        code = (await answer.json())["error"]["code"]
    opened, closed = await pair(keyed, store, "r1")
    assert opened.get("tenant", "") == tenant
    assert opened["decision"] == closed["reason"] == code
    assert closed["status"] == status
    assert keyed.replicas[0].seen == []


async def test_what_only_reads_is_recorded_too(keyed: Rig, store: Severed) -> None:
    for number, (path, status) in enumerate(
        [("/v1/models", 200), (f"/v1/models/{MODEL}", 200), ("/v1/models/nothing", 404)]
    ):
        async with keyed.http.get(keyed.url + path, headers=bearer(f"r{number}")) as answer:
            assert answer.status == status
        opened, closed = await pair(keyed, store, f"r{number}")
        assert (opened["path"], closed["status"], opened["tenant"]) == (path, status, "acme")
    async with keyed.http.get(f"{keyed.url}/v1/models", headers=named("r9")) as answer:
        assert answer.status == 401
    opened, _ = await pair(keyed, store, "r9")
    assert "tenant" not in opened


async def test_without_its_store_a_call_is_refused_before_anything_is_done(made: Rig, store: Severed) -> None:
    store.away = True
    for path, body in ((PATH, CHAT), ("/v1/completions", {"model": MODEL, "prompt": "x"})):
        async with made.http.post(made.url + path, json=body, headers=named("r1")) as answer:
            assert answer.status == 503
            told = await answer.json()
            assert told["error"]["code"] == "audit_unavailable"
            assert told["type"] == "urn:brownout:problem:audit_unavailable"
            assert int(answer.headers["retry-after"]) >= 1
    async with made.http.get(f"{made.url}/v1/models") as answer:
        assert answer.status == 503
    assert made.replicas[0].seen == []
    store.away = False
    async with made.http.post(made.url + PATH, json=CHAT, headers=named("r2")) as answer:
        assert answer.status == 200
    _, closed = await pair(made, store, "r2")
    assert closed["outcome"] == "ok"
    refused = [body_of(record) for record in await store.read(of_request("r1"))]
    assert [one.get("reason") for one in refused].count("audit_unavailable") == 2
    assert (await verify(store)).unclosed == []


async def test_a_call_under_way_ends_well_while_the_store_is_away_and_is_closed_later(
    made: Rig, store: Severed
) -> None:
    gate = asyncio.Event()
    made.replicas[0].behaviour = Behaviour(token_gate=gate)
    async with made.http.post(made.url + PATH, json={**CHAT, "stream": True}, headers=named("r1")) as answer:
        await answer.content.readany()
        store.away = True
        gate.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    await made.idle()
    assert made.gateway.state.audit.waiting == 1
    store.away = False
    _, closed = await pair(made, store, "r1")
    assert closed["outcome"] == "ok"


async def test_a_client_that_leaves_is_recorded_as_gone(made: Rig, store: Severed) -> None:
    made.replicas[0].behaviour = Behaviour(token_gate=asyncio.Event())
    answer = await made.http.post(made.url + PATH, json={**CHAT, "stream": True}, headers=named("r1"))
    await answer.content.readany()
    answer.close()
    await made.idle()
    _, closed = await pair(made, store, "r1")
    assert (closed["outcome"], closed["status"]) == ("cancelled", 200)


async def test_a_lost_answer_is_recorded_with_its_reason(made: Rig, store: Severed) -> None:
    await made.profile("naive")
    made.replicas[0].behaviour = Behaviour(cut_after=2)
    async with made.http.post(made.url + PATH, json={**CHAT, "stream": True}, headers=named("r1")) as answer:
        await answer.read()
    _, closed = await pair(made, store, "r1")
    assert (closed["outcome"], closed["reason"], closed["attempts"]) == ("failed", "replica_lost", 1)


async def test_a_gateway_that_is_killed_in_mid_stream_leaves_exactly_that_request_unknown(
    tmp_path: Path,
) -> None:
    links, setting = FakeLinks(), f"sqlite:///{tmp_path / 'store.db'}"
    await links.start()
    port, admin_port = free_ports(2)
    settings = {
        "port_links": links.url.rsplit(":", 1)[1],
        "port_gateway": port,
        "port_gateway_admin": admin_port,
    }
    environment = {f"BROWNOUT_{name.upper()}": str(value) for name, value in settings.items()}
    async with fake_replica() as replica, aiohttp.ClientSession() as http:
        await links.set([("replica-0.a", replica.address)])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cluster.gateway",
            env={**os.environ, **environment, "BROWNOUT_STORE": setting},
        )
        try:
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"http://127.0.0.1:{admin_port}/readyz") as answer:
                            if answer.status == 200:
                                break
                    await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{port}{PATH}"
            async with http.post(url, json=CHAT, headers=named("well")) as answer:
                assert answer.status == 200
                await answer.read()
            replica.behaviour = Behaviour(token_gate=asyncio.Event())
            async with http.post(url, json={**CHAT, "stream": True}, headers=named("cut")) as answer:
                await answer.content.readany()
                async with http.get(f"http://127.0.0.1:{port}/v1/models", headers=named("behind")) as models:
                    assert models.status == 200  # its record stands behind the first call's closing
                process.send_signal(signal.SIGKILL)
                with contextlib.suppress(aiohttp.ClientError):
                    await answer.read()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
            await links.stop()
    store = await open_store(setting, tmp_path)
    assert store is not None
    found = await verify(store)
    assert found.problems == []
    assert {one.request_id for one in found.unclosed} - {"behind"} == {"cut"}
    assert found.records >= 5
    await store.close()
