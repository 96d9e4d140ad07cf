"""The answer cache through a whole gateway: who gets whose answer, in which form, and what it is counted as."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from cluster import public
from cluster.gateway.store.tables import ANSWERS
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import Behaviour
from tests.fakes.tenants import TenantsFile

CLASS = "summary"
SETTINGS: dict[str, Any] = {
    "cacheable_classes": CLASS,
    "class_rungs": f"{CLASS}=cached",
    "cache_lookup_s": 30.0,
}


class Asked:
    """One answer as a client sees it."""

    def __init__(self, status: int, headers: Mapping[str, str], raw: bytes) -> None:
        self.status = status
        self.cache = headers.get(public.HEADER_CACHE, "")
        self.rung = headers.get(public.HEADER_RUNG, "")
        self.age = headers.get("age")
        self.raw = raw

    @property
    def events(self) -> list[dict[str, Any]]:
        assert self.raw.endswith(b"data: [DONE]\n\n")
        return [json.loads(one[6:]) for one in self.raw.split(b"\n\n")[:-2]]

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def text(self) -> str:
        if self.raw.startswith(b"data:"):
            choices = [choice for event in self.events for choice in event["choices"]]
            return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)
        choice = self.body["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])


async def ask(
    made: Rig,
    said: str = "hello",
    *,
    tenant: str = "acme",
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
    **body: Any,
) -> Asked:
    what = {"messages": [{"role": "user", "content": said}]} if "chat" in path else {"prompt": said}
    asked = {"model": "brownout-tiny", "max_tokens": 5, "temperature": 0, **what, **body}
    sent = {public.HEADER_CLASS: CLASS, public.HEADER_TENANT: tenant, **(headers or {})}
    async with made.http.post(made.url + path, json=asked, headers=sent) as response:
        return Asked(response.status, response.headers, await response.read())


def upstream(made: Rig) -> int:
    return sum(len(replica.seen) for replica in made.replicas)


async def metric(made: Rig, name: str) -> float:
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("then", [True, False])
async def test_an_answer_is_given_again_in_either_form(
    tmp_path: Path, path: str, first: bool, then: bool
) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        options = {"stream_options": {"include_usage": True}}
        one = await ask(made, path=path, stream=first)
        other = await ask(made, path=path, stream=then, **(options if then else {}))
        assert (one.cache, other.cache, upstream(made)) == ("miss", "hit", 1)
        assert other.text == one.text
        assert other.age == "0"
        answer = other.events if then else [other.body]
        assert answer[-1]["usage"]["completion_tokens"] == 5
        assert answer[0]["id"] != (one.events if first else [one.body])[0]["id"]
        reasons = [choice["finish_reason"] for event in answer for choice in event["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]


async def test_the_official_client_reads_what_is_given_again(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        client = made.openai(default_headers={public.HEADER_CLASS: CLASS})
        wanted: dict[str, Any] = {
            "model": "brownout-tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "temperature": 0,
        }
        whole = await client.chat.completions.create(**wanted)
        chunks = [chunk async for chunk in await client.chat.completions.create(**wanted, stream=True)]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert chunks[0].created == whole.created
        assert upstream(made) == 1


async def test_tenants_with_the_same_prompt_do_not_share(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        states = [(await ask(made, tenant=tenant)).cache for tenant in ("a", "b", "a", "b")]
        assert states == ["miss", "miss", "hit", "hit"]
        assert upstream(made) == 2
        assert await metric(made, public.METRIC_CACHE_CROSS_TENANT) == 0
        assert [(one["tenant"], one["owner"]) for one in made.events("cache")][2:] == [("a", "a"), ("b", "b")]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"temperature": 0.7}, {}),
        ({"temperature": None}, {}),
        ({"n": 2}, {}),
        ({"logprobs": True}, {}),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, {}),
        ({"tool_call": {"method": "get_price", "params": {"symbol": "ETH"}, "optional": True}}, {}),
        ({"return_token_ids": True}, {}),
        ({"vllm_xargs": {"brownout_end_at": 3}}, {}),
        ({}, {"cache-control": "no-cache"}),
        ({}, {"cache-control": "no-store"}),
    ],
    ids=str,
)
async def test_what_an_earlier_answer_may_not_stand_for_is_computed_each_time(
    tmp_path: Path, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        for number in (1, 2):
            asked = await ask(made, headers=headers, **body)
            assert (asked.status, asked.cache, upstream(made)) == (200, "bypass", number)


async def test_a_class_that_does_not_allow_it_is_not_concerned(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        for number in (1, 2):
            asked = await ask(made, headers={public.HEADER_CLASS: "chat"})
            assert (asked.cache, upstream(made)) == ("", number)
        assert made.events("cache") == []


async def test_no_class_is_cached_unless_it_is_named(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db") as made:
        for number in (1, 2):
            assert ((await ask(made)).cache, upstream(made)) == ("", number)


async def test_only_what_decides_the_answer_is_compared(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        await ask(made)
        assert (await ask(made, user="somebody", metadata={"a": "b"})).cache == "hit"
        for different in ({"max_tokens": 6}, {"stop": ["x"]}, {"ignore_eos": True}):
            assert (await ask(made, **different)).cache == "miss", different
        assert (await ask(made, "hello ")).cache == "miss"
        assert (await ask(made, "Hello")).cache == "miss"


async def test_a_new_model_revision_ends_what_was_kept_under_the_old(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        await ask(made)
        assert (await ask(made)).cache == "hit"
        url = f"{made.admin_url}/admin/revision"
        async with made.http.put(url, json={"model_revision": "2026-12"}) as response:
            assert response.status == 200
            assert (await response.json())["model_revision"] == "2026-12"
        assert (await ask(made)).cache == "miss"
        assert (await ask(made)).cache == "hit"
        async with made.http.get(url) as response:
            assert (await response.json())["model_revision"] == "2026-12"
        async with made.http.put(url, json={"model_revision": ""}) as response:
            assert response.status == 400


async def test_an_answer_begun_under_the_old_revision_is_not_kept(tmp_path: Path) -> None:
    async with rig(1, store=tmp_path / "store.db", **SETTINGS) as made:
        gate = asyncio.Event()
        made.replicas[0].script.append(Behaviour(first_token_gate=gate))
        old = asyncio.ensure_future(ask(made))
        await made.replicas[0].until(lambda: made.replicas[0].running == 1)
        async with made.http.put(f"{made.admin_url}/admin/revision", json={"model_revision": "2"}):
            pass
        gate.set()
        assert (await old).cache == "miss"
        for revision in ("1", "2"):
            async with made.http.put(f"{made.admin_url}/admin/revision", json={"model_revision": revision}):
                pass
            assert (await ask(made)).cache == "miss", revision


async def test_twenty_who_ask_at_once_cost_one_call(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.behaviour = Behaviour(first_token_gate=gate)
        callers = [asyncio.ensure_future(ask(made, stream=number % 2 == 0)) for number in range(20)]
        await made.until(lambda: len(made.gateway.calls) == 20 and upstream(made) == 1)
        gate.set()
        answers = await asyncio.gather(*callers)
        assert len({one.text for one in answers}) == 1
        assert sorted(one.cache for one in answers) == ["hit"] * 19 + ["miss"]
        assert upstream(made) == 1
        assert await metric(made, public.METRIC_CACHE_SAVED) > 0
        await made.idle()


async def test_two_tenants_who_ask_at_once_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.behaviour = Behaviour(first_token_gate=gate)
        callers = [asyncio.ensure_future(ask(made, tenant=tenant)) for tenant in ("a", "b", "a", "b")]
        await made.until(lambda: len(made.gateway.calls) == 4 and upstream(made) == 2)
        gate.set()
        assert sorted(one.cache for one in await asyncio.gather(*callers)) == ["hit", "hit", "miss", "miss"]


async def test_where_the_leader_leaves_the_next_leads(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.behaviour = Behaviour(first_token_gate=gate)
        leader = asyncio.ensure_future(ask(made))
        await made.until(lambda: upstream(made) == 1)
        others = [asyncio.ensure_future(ask(made)) for _ in range(5)]
        await made.until(lambda: len(made.gateway.calls) == 6)
        leader.cancel()
        await made.until(lambda: upstream(made) == 2 and len(made.gateway.calls) == 5)
        gate.set()
        answers = await asyncio.gather(*others)
        assert sorted(one.cache for one in answers) == ["hit"] * 4 + ["miss"]
        assert upstream(made) == 2
        await made.idle()


async def test_where_the_answer_is_not_kept_nobody_waits_in_a_row(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", cache_answer_bytes=10, **SETTINGS) as made:
        first, others = asyncio.Event(), asyncio.Event()
        for replica in made.replicas:
            replica.behaviour = Behaviour(first_token_gate=others)
            replica.script.append(Behaviour(first_token_gate=first))
        leader = asyncio.ensure_future(ask(made))
        await made.until(lambda: upstream(made) == 1)
        for replica in made.replicas:
            replica.script.clear()
        callers = [asyncio.ensure_future(ask(made)) for _ in range(6)]
        answers = made.gateway.state.answers
        assert answers is not None
        await made.until(lambda: answers.cache.flights.waiting == 6)
        first.set()
        assert (await leader).status == 200
        await made.until(lambda: upstream(made) == 7)
        others.set()
        assert {one.cache for one in await asyncio.gather(*callers)} == {"miss"}
        await made.idle()


async def test_where_the_leader_fails_the_others_are_answered(tmp_path: Path) -> None:
    async with rig(1, store=tmp_path / "store.db", **SETTINGS) as made:
        await made.profile("naive")
        gate = asyncio.Event()
        made.replicas[0].script.append(Behaviour(headers_gate=gate, status=500))
        leader = asyncio.ensure_future(ask(made))
        await made.until(lambda: upstream(made) == 1)
        others = [asyncio.ensure_future(ask(made)) for _ in range(5)]
        await made.until(lambda: len(made.gateway.calls) == 6)
        gate.set()
        assert (await leader).status == 502
        answers = await asyncio.gather(*others)
        assert {one.status for one in answers} == {200}
        assert upstream(made) == 2


async def test_a_row_that_was_given_to_another_tenant_is_not_given_out(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", cache_memory_bytes=0, **SETTINGS) as made:
        await ask(made, tenant="a")
        await ask(made, "other", tenant="b")
        answers, store = made.gateway.state.answers, made.gateway.state.store
        assert answers is not None
        assert store is not None
        await answers.flush()

        def swap(connection: Connection) -> None:
            of_a = connection.execute(select(ANSWERS).where(ANSWERS.c.tenant == "a")).one()
            given = {"body": of_a.body, "body_digest": of_a.body_digest}
            connection.execute(update(ANSWERS).where(ANSWERS.c.tenant == "b").values(given))

        await store.write(swap)
        asked = await ask(made, "other", tenant="b")
        assert asked.cache == "miss"
        assert [one["reason"] for one in made.events("wrong_hit_prevented")] == ["seal"]
        assert await metric(made, public.METRIC_CACHE_PREVENTED) == 1
        assert await metric(made, public.METRIC_CACHE_CROSS_TENANT) == 0
        assert (await ask(made, "other", tenant="b")).cache == "hit", "the true one has taken its place"


async def test_under_pressure_the_oldest_of_the_tenant_itself_go(tmp_path: Path) -> None:
    sizes = {"cache_memory_bytes": 0, "cache_tenant_bytes": 1500}
    async with rig(store=tmp_path / "store.db", **sizes, **SETTINGS) as made:
        answers, store = made.gateway.state.answers, made.gateway.state.store
        assert answers is not None
        assert store is not None
        await ask(made, "kept", tenant="b")
        for number in range(24):
            await ask(made, str(number), tenant="a")
        await answers.flush()
        of_a = select(func.sum(func.length(ANSWERS.c.body))).where(ANSWERS.c.tenant == "a")

        def size(connection: Connection) -> int:
            return connection.execute(of_a).scalar_one()

        assert await store.read(size) <= 1500 * 17 / 16
        assert (await ask(made, "0", tenant="a")).cache == "miss"
        assert (await ask(made, "23", tenant="a")).cache == "hit"
        assert (await ask(made, "kept", tenant="b")).cache == "hit"


async def test_what_another_gateway_has_kept_is_found(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as one:
        first = await ask(one)
        assert one.gateway.state.answers is not None
        await one.gateway.state.answers.flush()
        async with rig(store=tmp_path / "store.db", **SETTINGS) as other:
            found = await ask(other)
            assert (found.cache, upstream(other)) == ("hit", 0)
            assert found.text == first.text


async def test_what_was_made_shorter_is_not_kept(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **{**SETTINGS, "class_rungs": f"{CLASS}=cached"}) as made:
        ladder = made.gateway.pipeline.ladder
        assert ladder is not None
        ladder._ladder.level = 1
        ladder._looked_at = float("inf")
        shorter = await ask(made, max_tokens=8)
        assert (shorter.rung, shorter.cache) == ("short_output", "miss")
        ladder._ladder.level = 0
        assert (await ask(made, max_tokens=8)).cache == "miss"


async def test_a_call_that_would_be_refused_gets_what_is_stale(tmp_path: Path) -> None:
    ages = {"cache_fresh_s": 0.001, "cache_stale_s": 600}
    async with rig(store=tmp_path / "store.db", **ages, **SETTINGS) as made:
        first = await ask(made)
        await made.announce()
        for stream in (False, True):
            again = await ask(made, stream=stream)
            assert (again.status, again.cache, again.rung, again.text) == (200, "stale", "cached", first.text)
            told = again.events[-1] if stream else again.body
            assert told["brownout"] == {"rung": "cached"}
        assert (await ask(made, "never asked")).status == 503
        assert (await ask(made, tenant="b")).status == 503
        ended = [one["rung"] for one in made.events("call_ended")]
        assert ended == ["full", "cached", "cached", "refuse", "refuse"]


async def test_a_class_that_may_not_go_so_low_is_refused(tmp_path: Path) -> None:
    ages = {"cache_fresh_s": 0.001, "cache_stale_s": 600}
    settings = {**SETTINGS, "class_rungs": f"{CLASS}=small_model"}
    async with rig(store=tmp_path / "store.db", **ages, **settings) as made:
        await ask(made)
        await made.announce()
        assert (await ask(made)).status == 503


async def test_what_is_past_use_is_not_given_for_anything(tmp_path: Path) -> None:
    ages = {"cache_fresh_s": 0.001, "cache_stale_s": 0.001}
    async with rig(store=tmp_path / "store.db", **ages, **SETTINGS) as made:
        await ask(made)
        await made.announce()
        assert (await ask(made)).status == 503


async def test_a_call_whose_attempts_fail_gets_what_is_stale(tmp_path: Path) -> None:
    ages = {"cache_fresh_s": 0.001, "cache_stale_s": 600}
    async with rig(store=tmp_path / "store.db", **ages, **SETTINGS) as made:
        first = await ask(made)
        for replica in made.replicas:
            replica.behaviour = Behaviour(cut_before_headers=True)
        again = await ask(made)
        assert (again.status, again.cache, again.rung, again.text) == (200, "stale", "cached", first.text)
        assert (await ask(made, "never asked")).status in (502, 503)


async def test_the_value_is_what_is_saved_less_what_it_costs(tmp_path: Path) -> None:
    async with rig(store=tmp_path / "store.db", **SETTINGS) as made:
        for _ in range(3):
            await ask(made)
        saved, looked, wrong, value = [
            await metric(made, name)
            for name in (
                public.METRIC_CACHE_SAVED,
                public.METRIC_CACHE_LOOKUP,
                public.METRIC_CACHE_WRONG,
                public.METRIC_CACHE_VALUE,
            )
        ]
        assert min(saved, looked, wrong) > 0
        assert value == pytest.approx(saved - looked - wrong)
        assert await metric(made, public.METRIC_CACHE_LOOKUPS) == 3


# --- who may see it is asked each time -------------------------------------------------------------------------


async def keyed(made: Rig, file: TenantsFile, name: str) -> Asked:
    return await ask(made, headers={public.HEADER_TENANT: name.partition("/")[0], **file.bearer(name)})


async def test_callers_of_one_tenant_share_and_others_do_not(tmp_path: Path) -> None:
    file = TenantsFile(tmp_path / "tenants.toml")
    async with rig(store=tmp_path / "store.db", tenants_file=str(file.path), cache_lookup_s=30.0) as made:
        names = ("acme/web", "acme/desk", "beta/web", "beta/web")
        assert [(await keyed(made, file, name)).cache for name in names] == ["miss", "hit", "miss", "hit"]
        assert await metric(made, public.METRIC_CACHE_CROSS_TENANT) == 0


async def test_whose_key_is_revoked_gets_nothing_that_was_kept(tmp_path: Path) -> None:
    file = TenantsFile(tmp_path / "tenants.toml")
    async with rig(store=tmp_path / "store.db", tenants_file=str(file.path), cache_lookup_s=30.0) as made:
        assert (await keyed(made, file, "acme/web")).cache == "miss"
        file.write(without="acme/web")
        assert (await keyed(made, file, "acme/web")).status == 401
        assert (await keyed(made, file, "acme/desk")).cache == "hit"


async def test_whose_key_is_revoked_while_waiting_for_another_call_is_not_given_its_answer(
    tmp_path: Path,
) -> None:
    file = TenantsFile(tmp_path / "tenants.toml")
    async with rig(store=tmp_path / "store.db", tenants_file=str(file.path), cache_lookup_s=30.0) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.behaviour = Behaviour(first_token_gate=gate)
        leader = asyncio.ensure_future(keyed(made, file, "acme/desk"))
        await made.until(lambda: upstream(made) == 1)
        follower = asyncio.ensure_future(keyed(made, file, "acme/web"))
        await made.until(lambda: len(made.gateway.calls) == 2)
        file.write(without="acme/web")
        gate.set()
        assert (await leader).cache == "miss"
        assert (await follower).cache == "miss", "what it gets is computed for it, as it was let in for"
        assert [one["reason"] for one in made.events("wrong_hit_prevented")] == ["not_entitled"]


async def test_what_a_tenant_may_no_longer_have_answered_from_the_cache_is_computed(tmp_path: Path) -> None:
    file = TenantsFile(tmp_path / "tenants.toml")
    async with rig(store=tmp_path / "store.db", tenants_file=str(file.path), cache_lookup_s=30.0) as made:
        assert [(await keyed(made, file, "acme/web")).cache for _ in range(2)] == ["miss", "hit"]
        text = file.path.read_text()
        file.path.write_text(text.replace("cacheable = true", "cacheable = false"))
        assert (await keyed(made, file, "acme/web")).cache == ""
        file.path.write_text(text.replace('tools = ["get_price"]', "tools = []"))
        assert (await keyed(made, file, "acme/web")).cache == "miss", "other rights, another key"
