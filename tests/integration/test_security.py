"""What a stranger, and a tenant who tries more than it may, can get out of the gateway: nothing, not even words."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster import public
from cluster.gateway.api_keys import ApiKey, new_key
from cluster.gateway.keys import main as keys_command
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour
from tests.fakes.tenants import SALT_SECRET, TenantsFile

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = "the-prompt-that-nobody-else-may-see"
BODY: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3}


@pytest.fixture
def file(tmp_path: Path) -> TenantsFile:
    return TenantsFile(tmp_path / "tenants.toml")


@pytest.fixture
async def made(file: TenantsFile, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(
        1, store=tmp_path / "store.db", tenants_file=str(file.path), max_body_bytes=100_000
    ) as built:
        yield built


async def ask(
    made: Rig, headers: dict[str, str] | list[tuple[str, str]], path: str = TEXT, **options: Any
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Send a request; return status, body and headers."""
    options = {"json": BODY, **options} if "data" not in options else options
    async with made.http.post(made.url + path, headers=headers, **options) as response:
        return response.status, await response.json(), {k.lower(): v for k, v in response.headers.items()}


def is_refusal(answer: tuple[int, dict[str, Any], dict[str, str]], status: int, kind: str, code: str) -> bool:
    got, body, headers = answer
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (got, body["error"]["type"], body["error"]["code"]) == (status, kind, code)
    assert headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    return True


async def raw(made: Rig, head: str, body: bytes = b"") -> bytes:
    """Send bytes as they are, and return what comes back until the server has said all or closes."""
    host, port = made.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n" + body)
        await writer.drain()
        async with asyncio.timeout(10):
            said = await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    return said


# --- who is let in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": ""}, "invalid_api_key"),
        ({"authorization": "Bearer none"}, "invalid_api_key"),
        ({"authorization": f"Bearer {new_key().text}"}, "invalid_api_key"),
        ({"x-api-key": "{key}", "api-key": "{key}"}, "missing_api_key"),
        ({"authorization": "Basic {key}"}, "invalid_api_key"),
        ({"proxy-authorization": "Bearer {key}"}, "missing_api_key"),
        ({"cookie": "authorization=Bearer {key}"}, "missing_api_key"),
    ],
)
async def test_without_a_valid_key_where_it_belongs_nothing_is_answered(
    made: Rig, file: TenantsFile, headers: dict[str, str], code: str
) -> None:
    sent = {name: value.replace("{key}", file.keys["acme/web"].text) for name, value in headers.items()}
    for path in (TEXT, CHAT):
        assert is_refusal(await ask(made, sent, path), 401, "authentication_error", code)
    for path in ("/v1/models", f"/v1/models/{MODEL}"):
        async with made.http.get(made.url + path, headers=sent) as response:
            assert response.status == 401
            assert MODEL not in await response.text()
    assert made.replicas[0].seen == []
    await made.idle()


async def test_a_key_in_the_address_is_ignored(made: Rig, file: TenantsFile) -> None:
    key = file.keys["acme/web"].text
    for name in ("key", "api_key", "authorization", "access_token"):
        answer = await ask(made, {}, f"{TEXT}?{name}={key}")
        assert is_refusal(answer, 401, "authentication_error", "missing_api_key")
    assert made.replicas[0].seen == []


async def test_a_valid_key_is_answered_and_other_ports_need_none(made: Rig, file: TenantsFile) -> None:
    assert (await ask(made, file.bearer()))[0] == 200
    for url in (made.url, made.admin_url):
        for path in ("/healthz", "/readyz"):
            async with made.http.get(url + path) as response:
                assert response.status == 200


async def test_a_revoked_key_fails_on_the_next_request_and_a_rotated_one_after_its_grace(
    made: Rig, file: TenantsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> dict[str, str]:
        assert keys_command([*arguments, "--file", str(file.path)]) == 0
        return {"authorization": f"Bearer {capsys.readouterr().out.strip()}"}

    first = file.bearer()
    assert (await ask(made, first))[0] == 200
    second = command("rotate", file.keys["acme/web"].id, "--grace", "1h")
    assert [(await ask(made, one))[0] for one in (first, second)] == [200, 200]
    command("revoke", file.keys["acme/web"].id)
    assert [(await ask(made, one))[0] for one in (first, second)] == [401, 200]
    third = command("rotate", second["authorization"].split("_")[1])
    assert [(await ask(made, one))[0] for one in (second, third)] == [401, 200]
    assert (await ask(made, file.bearer("beta/web")))[0] == 200, "nobody else is touched"


async def test_a_connection_that_is_kept_alive_keeps_no_rights(made: Rig, file: TenantsFile) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for status, headers in ((200, file.bearer()), (401, {}), (200, file.bearer()), (401, {})):
            async with session.post(made.url + TEXT, json=BODY, headers=headers) as response:
                assert response.status == status
                await response.read()


@pytest.mark.parametrize("text", ["no toml [", None])
async def test_while_the_file_cannot_be_used_everybody_is_refused_and_told_nothing(
    made: Rig, file: TenantsFile, text: str | None
) -> None:
    assert (await ask(made, file.bearer()))[0] == 200
    if text is None:
        file.path.unlink()
    else:
        file.path.write_text(text)
    status, body, headers = await ask(made, file.bearer())
    assert (status, body["error"]["code"]) == (503, "tenants_unavailable")
    assert int(headers["retry-after"]) >= 1
    assert str(file.path) not in json.dumps(body)
    async with made.http.get(f"{made.url}/v1/models", headers=file.bearer()) as response:
        assert response.status == 503
        assert response.headers["retry-after"]
    file.write()
    assert (await ask(made, file.bearer()))[0] == 200
    assert len(made.replicas[0].seen) == 2


# --- what they may -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({public.HEADER_TENANT: "beta"}, {}, "wrong_tenant"),
        ({public.HEADER_PRIORITY: "critical_plus"}, {}, "priority_not_allowed"),
        ({public.HEADER_CLASS: "reconciliation"}, {}, "class_not_allowed"),
        ({}, {"tool_call": {"method": "get_transfer", "params": {}}}, "tool_not_allowed"),
    ],
)
async def test_what_is_not_allowed_is_forbidden_and_reaches_no_replica(
    made: Rig, file: TenantsFile, headers: dict[str, str], body: dict[str, Any], code: str
) -> None:
    answer = await ask(made, {**file.bearer(), **headers}, json={**BODY, **body})
    assert is_refusal(answer, 403, "permission_error", code)
    assert made.replicas[0].seen == []
    await made.idle()


async def test_models_that_are_not_allowed_are_neither_shown_nor_served(made: Rig, file: TenantsFile) -> None:
    file.more["acme"] = ""
    text = file.path.read_text().replace(f'models = ["{MODEL}", ', "models = [")
    file.path.write_text(text)
    async with made.http.get(f"{made.url}/v1/models", headers=file.bearer()) as response:
        assert (await response.json())["data"] == []
    async with made.http.get(f"{made.url}/v1/models/{MODEL}", headers=file.bearer()) as response:
        assert response.status == 403
    assert is_refusal(await ask(made, file.bearer()), 403, "permission_error", "model_not_allowed")
    async with made.http.get(f"{made.url}/v1/models", headers=file.bearer("beta/web")) as response:
        assert [one["id"] for one in (await response.json())["data"]] == [MODEL]


async def test_the_smaller_model_is_reached_by_right_only(made: Rig, file: TenantsFile) -> None:
    """Fault 14 through the whole gateway: the ladder is at its lowest, the prompt may be of any size."""
    from tests.unit.test_fault_14_small_model_by_size import lowered

    [small] = await made.small()
    lowered(made)
    sheddable = {public.HEADER_CLASS: "chat"}
    status, _, headers = await ask(made, {**file.bearer("beta/web"), **sheddable})
    assert (status, headers[public.HEADER_RUNG]) == (200, "short_output")
    for size in ([1] * 5000, [1] * 4094):
        status, _, _ = await ask(
            made, {**file.bearer("beta/web"), **sheddable}, json={**BODY, "prompt": size, "max_tokens": 10}
        )
        assert status == 400
    assert (await ask(made, file.bearer("beta/web"), json={**BODY, "model": public.SMALL_MODEL_NAME}))[
        0
    ] == 404
    assert small.seen == []
    status, _, headers = await ask(made, {**file.bearer("acme/web"), **sheddable})
    assert (status, headers[public.HEADER_RUNG]) == (200, "small_model")
    assert len(small.seen) == 1
    file.path.write_text(file.path.read_text().replace(f', "{public.SMALL_MODEL_NAME}"]', "]"))
    _, _, headers = await ask(made, {**file.bearer("acme/web"), **sheddable})
    assert headers[public.HEADER_RUNG] == "short_output", "the right has ended, so has the way there"
    assert len(small.seen) == 1


# --- caches of prefixes ------------------------------------------------------------------------------------


def salts(made: Rig) -> list[str]:
    return [seen.body["cache_salt"] for replica in made.replicas for seen in replica.seen]


async def test_each_tenants_prompts_carry_its_own_salt_whatever_the_client_says(
    made: Rig, file: TenantsFile
) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    for name in ("acme/web", "acme/desk", "beta/web"):
        for path, body in ((TEXT, BODY), (CHAT, chat), (CHAT, {**chat, "stream": True})):
            for more in ({}, {"cache_salt": "mine"}, {"cache_salt": ""}, {"cache_salt": None}):
                async with made.http.post(
                    made.url + path, json={**body, **more}, headers=file.bearer(name)
                ) as response:
                    assert response.status == 200
                    await response.read()
    seen = salts(made)
    assert len(seen) == 36
    assert len(set(seen[:24])) == len(set(seen[24:])) == 1, "a tenant shares its cache"
    assert len(set(seen)) == 2, "and with nobody else"
    assert not {"mine", "", SALT_SECRET} & set(seen)


async def test_a_tenant_does_not_have_anothers_salt_by_naming_it(made: Rig, file: TenantsFile) -> None:
    await ask(made, file.bearer("acme/web"))
    [acme] = salts(made)
    await ask(made, file.bearer("beta/web"), json={**BODY, "cache_salt": acme})
    assert salts(made)[1] != acme


async def test_a_tenant_does_not_steer_the_engine_itself(made: Rig, file: TenantsFile) -> None:
    steering = {
        "priority": -100,
        "request_id": "cmpl-anothers",
        "kv_transfer_params": {"remote_host": "10.0.0.1"},
    }
    assert (await ask(made, file.bearer(), json={**BODY, **steering, "seed": 7}))[0] == 200
    [seen] = made.replicas[0].seen
    assert not steering.keys() & seen.body.keys()
    assert seen.body["seed"] == 7, "all else passes through"


async def test_the_smaller_model_gets_the_salt_too(made: Rig, file: TenantsFile) -> None:
    from tests.unit.test_fault_14_small_model_by_size import lowered

    await ask(made, file.bearer("acme/web"))
    [small] = await made.small()
    lowered(made)
    await ask(made, {**file.bearer("acme/web"), public.HEADER_CLASS: "chat"})
    assert [seen.body["cache_salt"] for seen in small.seen] == salts(made)[:1]


async def test_in_open_mode_tenants_are_apart_too() -> None:
    async with rig(1) as made:
        for tenant in ("", "", "blue", "green", "blue"):
            await ask(made, {public.HEADER_TENANT: tenant} if tenant else {})
        default, again, blue, green, blue_again = salts(made)
        assert default == again
        assert blue == blue_again
        assert len({default, blue, green}) == 3
    async with rig(1) as made:
        await ask(made, {public.HEADER_TENANT: "blue"})
        assert salts(made) == [blue], "the same on every gateway"


# --- smuggling ---------------------------------------------------------------------------------------------


async def test_a_second_key_is_not_chosen_among(made: Rig, file: TenantsFile) -> None:
    good, other = file.bearer()["authorization"], file.bearer("beta/web")["authorization"]
    for pair in ((good, other), (good, "Bearer none"), ("Bearer none", good), (good, good)):
        answer = await ask(made, [("authorization", one) for one in pair])
        assert is_refusal(answer, 401, "authentication_error", "invalid_api_key")
    assert made.replicas[0].seen == []


async def test_a_second_tenant_is_not_chosen_among(made: Rig, file: TenantsFile) -> None:
    key = ("authorization", file.bearer()["authorization"])
    for name in (public.HEADER_TENANT, public.HEADER_CLASS, public.HEADER_PRIORITY):
        answer = await ask(made, [key, (name, "acme"), (name, "beta")])
        assert is_refusal(answer, 400, "invalid_request_error", "repeated_header")
    assert made.replicas[0].seen == []


async def test_names_with_underscores_are_other_names(made: Rig, file: TenantsFile) -> None:
    """A server that makes CGI names of headers takes one for the other."""
    assert (await ask(made, {"Authorization_": "x", "x_api_key": "x"}))[0] == 401
    headers = {
        **file.bearer(),
        "x_brownout_tenant": "beta",
        "x_brownout_priority": "critical_plus",
        "x_request_id": "forged",
    }
    status, _, answered = await ask(made, headers)
    assert status == 200
    assert answered[public.HEADER_REQUEST_ID] != "forged"


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\nTransfer-Encoding: chunked\n",
        "Transfer-Encoding: chunked\nContent-Length: 5\n",
        "Content-Length: 5\nContent-Length: 6\n",
        "Transfer-Encoding: xchunked\n",
        "Transfer-Encoding : chunked\n",
        "Content-Length: +5\n",
        "Content-Length: 5\n X: folded\n",
    ],
)
async def test_a_request_whose_end_is_in_doubt_is_refused_and_so_is_what_hides_behind_it(
    made: Rig, file: TenantsFile, framing: str
) -> None:
    key = f"Authorization: {file.bearer()['authorization']}\n"
    inner = json.dumps(BODY).encode()
    hidden = (
        f"POST {TEXT} HTTP/1.1\r\nHost: x\r\n{key.strip()}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(inner)}\r\n\r\n"
    ).encode() + inner
    head = f"POST {TEXT} HTTP/1.1\nHost: x\n{key}Content-Type: application/json\n{framing}"
    said = await raw(made, head, b"0\r\n\r\n" + hidden)
    assert said.split(b"\r\n")[0].split(b" ")[1] == b"400", said
    assert made.replicas[0].seen == []


@pytest.mark.parametrize("line", ["X: a\x00b", "A\x0b: x", "no colon", "Authorization: Bearer a\x01"])
async def test_bytes_that_have_no_place_in_a_header_end_the_request(made: Rig, line: str) -> None:
    said = await raw(made, f"GET /v1/models HTTP/1.1\nHost: x\n{line}\n")
    assert said.split(b" ")[1] in (b"400", b"401")


# --- bodies ------------------------------------------------------------------------------------------------


async def test_a_stranger_is_refused_before_the_body_is_read(made: Rig) -> None:
    said = await raw(made, f"POST {TEXT} HTTP/1.1\nHost: x\nContent-Length: 90000\n")
    assert said.split(b" ")[1] == b"401", "no byte of the body was sent"


async def test_a_body_that_is_too_large_is_not_kept(made: Rig, file: TenantsFile) -> None:
    key = f"Authorization: {file.bearer()['authorization']}\n"
    said = await raw(made, f"POST {TEXT} HTTP/1.1\nHost: x\n{key}Content-Length: 100001\n")
    assert said.split(b" ")[1] == b"413", "the length was enough"
    status, _, _ = await ask(made, file.bearer(), data=b"x" * 100_001)
    assert status == 413
    assert made.replicas[0].seen == []


async def test_a_body_that_comes_too_slowly_is_given_up(
    made: Rig, file: TenantsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.gateway.exchange._BODY_TIMEOUT_S", 0.05)
    key = f"Authorization: {file.bearer()['authorization']}\n"
    said = await raw(made, f"POST {TEXT} HTTP/1.1\nHost: x\n{key}Content-Length: 100\n", b"{")
    assert said.split(b" ")[1] == b"408"
    await made.idle()


# --- what is told ------------------------------------------------------------------------------------------


async def failing_calls(made: Rig, file: TenantsFile) -> list[str]:
    """Make every kind of call that fails; return what their answers said, with their headers."""
    texts: list[str] = []
    forged = ApiKey(file.keys["acme/web"].id, "f" * 64)
    bad: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"authorization": f"Bearer {forged.text}"}, {"json": BODY}),
        ({"authorization": f"Basic {file.keys['acme/web'].text}"}, {"json": BODY}),
        ({**file.bearer(), public.HEADER_TENANT: "beta"}, {"json": BODY}),
        (file.bearer(), {"json": {**BODY, "n": "many"}}),
        (file.bearer(), {"json": {**BODY, "prompt": {PROMPT: PROMPT}}}),
        (file.bearer(), {"json": {**BODY, "messages": [PROMPT]}}),
        (
            file.bearer(),
            {"data": f'{{"prompt": "{PROMPT}"'.encode(), "headers": {"content-type": "application/json"}},
        ),
        (
            file.bearer(),
            {
                "data": f'{{"prompt": "{PROMPT}\xff"'.encode("latin-1"),
                "headers": {"content-type": "application/json"},
            },
        ),
        (file.bearer(), {"json": {**BODY, "prompt": PROMPT * 3000}}),
        (file.bearer(), {"json": {**BODY, "tool_call": {"method": "get_price", "params": {"x": PROMPT}}}}),
    ]
    for headers, options in bad:
        options["headers"] = {**options.get("headers", {}), **headers}
        async with made.http.post(made.url + TEXT, **options) as response:
            assert response.status >= 400
            texts.append(await response.text() + str(response.headers))
    for how in (
        Behaviour(status=500),
        Behaviour(status=400),
        Behaviour(cut_before_headers=True),
        Behaviour(cut_after=1),
    ):
        made.replicas[0].behaviour = how
        async with made.http.post(
            made.url + TEXT, json={**BODY, "stream": True}, headers=file.bearer()
        ) as response:
            texts.append(await response.text() + str(response.headers))
    return texts


async def test_neither_logs_nor_answers_of_failing_calls_hold_secrets_or_prompts(
    made: Rig, file: TenantsFile, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    salt = salts_secret = SALT_SECRET
    assert (await ask(made, file.bearer()))[0] == 200
    [salt] = salts(made)
    with caplog.at_level(logging.DEBUG):
        texts = await failing_calls(made, file)

        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault of the gateway itself")

        made.replicas[0].behaviour = Behaviour()
        monkeypatch.setattr("cluster.gateway.answering.Answering.serve", broken)
        status, body, _ = await ask(made, file.bearer())
        assert status == 500
        texts.append(json.dumps(body))
        file.path.write_text("broken [ " + file.path.read_text())
        texts.append(json.dumps((await ask(made, file.bearer()))[1]))
    formatter = logging.Formatter()
    logged = [formatter.format(record) for record in caplog.records if not record.name.startswith("tests.")]
    assert any("fault of the gateway itself" in one for one in logged), "logs are captured"
    assert any("nobody is let in" in one for one in logged)
    secrets = [salt, salts_secret, "f" * 64, *(key.secret for key in file.keys.values())]
    secrets += [key.digest for key in file.keys.values()]
    for text in texts + logged:
        for secret in secrets:
            assert secret not in text
    for text in logged:
        assert PROMPT not in text
    for text in texts:
        if PROMPT in text:  # its own words, to its own sender, and never more than the beginning
            assert text.count(PROMPT) <= 1


async def test_a_stranger_is_told_nothing_of_who_there_is(made: Rig, file: TenantsFile) -> None:
    known = ApiKey(file.keys["acme/web"].id, "0" * 64)
    answers = [await ask(made, {"authorization": f"Bearer {key.text}"}) for key in (known, new_key())]
    assert answers[0][1] == answers[1][1]
    assert "acme" not in json.dumps(answers[0][1])


async def test_administration_and_metrics_are_not_on_the_public_port(made: Rig, file: TenantsFile) -> None:
    for headers in ({}, file.bearer("acme/desk")):
        for path in (
            "/metrics",
            "/admin/profile",
            "/admin/inflight",
            "/admin/events",
            "/admin/wait",
            "/admin/",
        ):
            for method in ("GET", "PUT", "POST"):
                async with made.http.request(method, made.url + path, headers=headers) as response:
                    assert response.status == 404, (method, path)
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        text = await response.text()
    assert public.METRIC_UNAUTHENTICATED in text
    assert not any(name in text for name in ("acme", "beta", file.keys["acme/web"].id))


async def test_strangers_are_counted_by_what_was_wrong(made: Rig, file: TenantsFile) -> None:
    await ask(made, {})
    await ask(made, {"authorization": f"Bearer {new_key().text}"})
    file.path.unlink()
    await ask(made, file.bearer())
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    counts = {
        line.split('"')[1]: float(line.split()[-1])
        for line in lines
        if line.startswith(f"{public.METRIC_UNAUTHENTICATED}{{")
    }
    assert {reason: count for reason, count in counts.items() if count} == {
        "missing": 1.0,
        "unknown": 1.0,
        "unavailable": 1.0,
    }
    assert f"{public.METRIC_TENANTS_USABLE} 0.0" in lines


# --- quotas ------------------------------------------------------------------------------------------------


def quota_of(file: TenantsFile, **limits: int) -> None:
    file.more["acme"] = "[tenants.acme.quotas]\n" + "\n".join(f"{k} = {v}" for k, v in limits.items())
    file.write()


async def test_a_quota_holds_for_a_tenant_and_for_nobody_else(made: Rig, file: TenantsFile) -> None:
    quota_of(file, requests_per_minute=1)
    statuses = [(await ask(made, file.bearer(name)))[0] for name in ("acme/web", "acme/desk", "beta/web")]
    if statuses[1] == 200:  # a minute ended between the two
        statuses[1] = (await ask(made, file.bearer("acme/web")))[0]
    assert statuses == [200, 429, 200]
    status, body, headers = await ask(made, file.bearer())
    if status == 429:
        assert body["error"]["type"] == public.ERROR_QUOTA
        assert 1 <= int(headers["retry-after"]) <= 62
        assert headers["x-should-retry"] == "true"
        assert headers["content-type"] == "application/problem+json"


async def test_tokens_that_were_not_used_come_back(made: Rig, file: TenantsFile) -> None:
    quota_of(file, tokens_per_minute=1000)
    body = {**BODY, "prompt": [1] * 10, "max_tokens": 900}
    made.replicas[0].behaviour = Behaviour(status=400)
    for _ in range(5):
        assert (await ask(made, file.bearer(), json=body))[0] == 400
    gate = asyncio.Event()
    made.replicas[0].behaviour = Behaviour(first_token_gate=gate)
    running = asyncio.ensure_future(ask(made, file.bearer(), json=body))
    await made.replicas[0].until(lambda: made.replicas[0].running == 1)
    status, said, _ = await ask(made, file.bearer(), json=body)
    gate.set()
    assert (await running)[0] == 200
    assert (status, said["error"]["code"]) == (429, "quota")
    too_much = {**BODY, "prompt": [1] * 200, "max_tokens": 900}
    status, said, _ = await ask(made, file.bearer(), json=too_much)
    assert (status, said["error"]["code"]) == (400, "request_exceeds_quota")


async def test_a_tenant_with_a_quota_is_refused_where_there_is_no_store(file: TenantsFile) -> None:
    quota_of(file, requests_per_minute=5)
    async with rig(1, tenants_file=str(file.path)) as made:
        status, body, _ = await ask(made, file.bearer())
        assert (status, body["error"]["code"]) == (503, "quota_unavailable")
        assert (await ask(made, file.bearer("beta/web")))[0] == 200
        assert len(made.replicas[0].seen) == 1
