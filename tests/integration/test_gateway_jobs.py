"""Jobs through a real gateway: accepted, worked off from what callers leave, and seen by nobody but their owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import public
from cluster.gateway.api_keys import new_key
from cluster.gateway.jobs_headroom import Spare, has_room
from cluster.gateway.jobs_queue import SqlQueue
from policies.work import Reservation, Work
from policies.work_queue import RUNNING, LeaseLost, QueueRules
from tests.fakes.gateway import Rig, rig
from tests.fakes.real_tool import real_tool
from tests.fakes.replica import MODEL, Behaviour

CHAT = "/v1/chat/completions"
ASYNC = {"prefer": "respond-async"}
QUICK = {"job_lease_s": 1.0, "ladder_dwell_s": 0.25}
KEYS = {name: new_key() for name in ("web", "batch", "boss", "other")}


def key_of(name: str, tail: str = "") -> str:
    return f'id = "{KEYS[name].id}"\nsha256 = "{KEYS[name].digest}"\n{tail}'


def tenants(web: str = "") -> str:
    return f"""
salt_secret = "0123456789abcdef0123456789abcdef"
[tenants.acme]
models = ["{MODEL}"]
[[tenants.acme.principals.web.keys]]
{key_of("web", web)}
[[tenants.acme.principals.batch.keys]]
{key_of("batch")}
[tenants.acme.principals.boss]
roles = ["operator"]
[[tenants.acme.principals.boss.keys]]
{key_of("boss")}
[tenants.other]
models = ["{MODEL}"]
[[tenants.other.principals.web.keys]]
{key_of("other")}
"""


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(1, store=tmp_path / "store.db", **QUICK) as built:
        yield built


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway that asks for keys; its file is ``tenants.toml``."""
    write(tmp_path / "tenants.toml", tenants())
    async with rig(
        1, store=tmp_path / "store.db", tenants_file=str(tmp_path / "tenants.toml"), ladder_dwell_s=0.25
    ) as built:
        yield built


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


async def ask(
    made: Rig, headers: dict[str, str] | None = None, *, path: str = CHAT, **fields: Any
) -> tuple[int, Any, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 8, **fields}
    if path != CHAT:
        del body["messages"]
    async with made.http.post(
        made.url + path, json=body, headers=ASYNC if headers is None else headers
    ) as it:
        return it.status, it.headers, json.loads(await it.read())


async def call(
    made: Rig, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, Any, Any]:
    async with made.http.request(method, made.url + path, headers=headers) as it:
        return it.status, it.headers, json.loads(await it.read())


async def until(
    made: Rig, path: str, wanted: str | Callable[[Any], bool], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Ask for the job until it is as wanted; return it."""
    async with asyncio.timeout(20):
        while True:
            status, _, job = await call(made, "GET", path, headers)
            assert status == 200, job
            if job["status"] == wanted if isinstance(wanted, str) else wanted(job):
                return dict(job)
            await asyncio.sleep(0.02)


def busy(made: Rig) -> None:
    """Leave nothing to jobs, until the load is forgotten."""
    made.gateway.rates.arrived(Work(0, 10_000_000))


def calm(made: Rig) -> None:
    made.gateway.rates._offered = 0.0


def bearer(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name].text}", **more}


# --- accepted ----------------------------------------------------------------------------------------------


async def test_who_would_rather_have_a_job_gets_one_and_its_result(made: Rig) -> None:
    status, headers, accepted = await ask(made, {**ASYNC, public.HEADER_REQUEST_ID: "mine"}, max_tokens=5)
    assert status == 202
    assert headers["location"] == f"/v1/jobs/{accepted['id']}"
    assert headers["preference-applied"] == "respond-async"
    assert (accepted["object"], accepted["status"], accepted["request_id"]) == ("job", "queued", "mine")
    assert accepted["position"] >= 1
    assert accepted["estimate_s"] >= 0
    job = await until(made, headers["location"], "done")
    assert (job["attempts"], job["path"]) == (1, CHAT)
    assert job["created_at"] <= job["started_at"] <= job["ended_at"] < job["kept_until"]
    status, headers, result = await call(made, "GET", headers["location"] + "/result")
    assert (status, headers[public.HEADER_RUNG]) == (200, "full")
    assert result["object"] == "chat.completion"
    assert result["usage"]["completion_tokens"] == 5
    _, _, straight = await ask(made, {}, max_tokens=5)
    assert result["choices"] == straight["choices"], "what it would have been answered at once"


async def test_both_apis_and_streams_become_jobs_with_a_whole_result(made: Rig) -> None:
    for fields in ({"path": "/v1/completions", "prompt": "x"}, {"stream": True}):
        status, headers, _ = await ask(made, stream_options=None, **fields)  # type: ignore[arg-type]
        assert status == 202
        await until(made, headers["location"], "done")
        _, headers, result = await call(made, "GET", headers["location"] + "/result")
        assert headers["content-type"] == "application/json"
        assert result["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("prefer", "status"),
    [
        ("respond-async", 202),
        ("wait=5, respond-async", 202),
        ("Respond-Async; x=1", 202),
        ("wait=5", 200),
        ("handling=lenient;respond-async", 200),
        ("respond-asynchronously", 200),
    ],
)
async def test_only_that_preference_makes_a_job(made: Rig, prefer: str, status: int) -> None:
    assert (await ask(made, {"prefer": prefer}))[0] == status


async def test_without_a_store_the_preference_is_passed_over() -> None:
    async with rig(1) as made:
        status, headers, _ = await ask(made)
        assert (status, headers.get("preference-applied")) == (200, None)
        assert (await call(made, "GET", "/v1/jobs"))[0] == 404


async def test_what_is_wrong_is_refused_at_once_and_not_later(made: Rig) -> None:
    for fields in ({"max_tokens": 10_000}, {"messages": []}, {"model": "no"}):
        assert (await ask(made, **fields))[0] in (400, 404)
    assert (await call(made, "GET", "/v1/jobs"))[2]["data"] == []


async def test_the_queue_is_bounded_and_says_whose_fault_it_is(tmp_path: Path) -> None:
    async with rig(1, store=tmp_path / "s.db", jobs_most=4, jobs_tenant_share=0.5) as made:
        busy(made)

        def of(tenant: str) -> dict[str, str]:
            return {**ASYNC, public.HEADER_TENANT: tenant}

        got = [(await ask(made, of(tenant)))[0] for tenant in "aaabbc"]
        assert got == [202, 202, 429, 202, 202, 503]
        status, headers, body = await ask(made, of("c"))
        assert (status, body["error"]["code"]) == (503, "queue_full")
        assert int(headers["retry-after"]) >= 1


async def test_the_same_idempotency_key_is_the_same_job(made: Rig) -> None:
    key = {**ASYNC, public.HEADER_IDEMPOTENCY_KEY: "k-1"}
    _, _, first = await ask(made, key)
    status, headers, again = await ask(made, key)
    assert (status, headers[public.HEADER_REPLAYED], again["id"]) == (202, "true", first["id"])
    await until(made, headers["location"], "done")
    assert (await ask(made, key, max_tokens=9))[0] == 422
    assert len((await call(made, "GET", "/v1/jobs"))[2]["data"]) == 1
    assert len(made.replicas[0].seen) == 1


async def test_a_key_that_has_expired_can_come_back_with_another_request(made: Rig) -> None:
    """The job of before is still kept then: a job can wait and run for long before its own time begins."""
    made.gateway.state.claims.keep_s = 0.0
    key = {**ASYNC, public.HEADER_IDEMPOTENCY_KEY: "k-1"}
    answers = [(await ask(made, key, max_tokens=tokens))[2] for tokens in (3, 4)]
    assert answers[0]["id"] != answers[1]["id"]


# --- the rung ----------------------------------------------------------------------------------------------


def out_of_capacity(made: Rig) -> Reservation:
    """Let the replica have so much to do that every first token would be far too late, and nobody is let in."""
    return made.gateway.ledger.reserve(made.gateway.fleet.replicas[0], Work(10_000_000, 0))


@pytest.mark.parametrize(("stream", "class_rungs"), [(False, ""), (True, ""), (False, "summary=deferred")])
async def test_work_that_may_wait_becomes_a_job_where_it_would_be_refused(
    tmp_path: Path, stream: bool, class_rungs: str
) -> None:
    async with rig(1, store=tmp_path / "s.db", class_rungs=class_rungs, ladder_dwell_s=0.25) as made:
        burden = out_of_capacity(made)
        assert (await ask(made, {public.HEADER_PRIORITY: "sheddable"}))[0] == 503, "others are refused"
        status, headers, job = await ask(made, {public.HEADER_CLASS: "summary"}, stream=stream, max_tokens=20)
        assert (status, headers[public.HEADER_RUNG], job["status"]) == (202, "deferred", "queued")
        assert "preference-applied" not in headers
        assert made.replicas[0].seen == []
        burden.release()
        await until(made, headers["location"], "done")
        _, _, result = await call(made, "GET", headers["location"] + "/result")
        assert result["usage"]["completion_tokens"] == 20, "as it was asked, not as the ladder had left it"
        rungs = made.gateway.metrics.render().decode()
        assert f'{public.METRIC_RUNGS}{{rung="deferred"}} 1.0' in rungs


async def test_a_full_queue_leaves_the_refusal_as_it_was(tmp_path: Path) -> None:
    async with rig(
        1, store=tmp_path / "s.db", class_rungs="summary=deferred", ladder_dwell_s=0.25, jobs_most=1
    ) as made:
        out_of_capacity(made)
        summary = {public.HEADER_CLASS: "summary"}
        assert (await ask(made, summary))[0] == 202
        status, headers, body = await ask(made, summary)
        assert (status, headers[public.HEADER_RUNG], body["error"]["code"]) == (503, "refuse", "overloaded")


async def test_a_missing_replica_makes_work_that_may_wait_wait(tmp_path: Path) -> None:
    async with rig(1, store=tmp_path / "s.db", class_rungs="summary=deferred", ladder_dwell_s=0.25) as made:
        [replica] = made.replicas
        await made.announce()
        status, headers, job = await ask(made, {public.HEADER_CLASS: "summary"})
        assert (status, job["estimate_s"]) == (202, None)
        await made.announce(("replica-0.b", replica))
        await until(made, headers["location"], "done")


# --- seen, and ended ---------------------------------------------------------------------------------------


async def test_nobody_sees_ends_or_lists_what_is_not_theirs(keyed: Rig) -> None:
    busy(keyed)
    _, headers, job = await ask(keyed, bearer("web", **ASYNC))
    where = headers["location"]
    for name in ("other", "batch"):
        for method, path in (
            ("GET", where),
            ("GET", where + "/result"),
            ("DELETE", where),
            ("POST", where + "/cancel"),
        ):
            status, _, body = await call(keyed, method, path, bearer(name))
            assert (status, body["error"]["code"]) == (404, "job_not_found"), (name, method)
        assert (await call(keyed, "GET", "/v1/jobs", bearer(name)))[2]["data"] == []
        status, _, body = await call(keyed, "GET", f"/v1/jobs?after={job['id']}", bearer(name))
        assert (status, body["error"]["param"]) == (400, "after")
    assert (await call(keyed, "GET", where))[0] == 401
    assert (await call(keyed, "DELETE", where))[0] == 401
    status, _, _ = await call(keyed, "GET", where, bearer("web", **{public.HEADER_TENANT: "other"}))
    assert status == 403
    for name in ("web", "boss"):
        assert (await call(keyed, "GET", where, bearer(name)))[2]["status"] == "queued"
        listed = (await call(keyed, "GET", "/v1/jobs", bearer(name)))[2]["data"]
        assert [one["id"] for one in listed] == [job["id"]]


async def test_a_key_that_was_revoked_ends_its_jobs(keyed: Rig, tmp_path: Path) -> None:
    busy(keyed)
    _, headers, _ = await ask(keyed, bearer("web", **ASYNC))
    write(tmp_path / "tenants.toml", tenants("revoked_at = 2020-01-01T00:00:00Z\n"))
    calm(keyed)
    job = await until(keyed, headers["location"], "failed", bearer("boss"))
    assert job["reason"] == "entitlement_revoked"
    assert keyed.replicas[0].seen == []
    status, _, body = await call(keyed, "GET", headers["location"] + "/result", bearer("boss"))
    assert (status, body["error"]["code"]) == (409, "job_failed")
    assert "entitlement_revoked" in body["error"]["message"]


async def test_lists_come_in_pages_newest_first(made: Rig) -> None:
    busy(made)
    ids = [(await ask(made))[2]["id"] for _ in range(5)]
    seen: list[str] = []
    after = ""
    while True:
        status, _, page = await call(made, "GET", f"/v1/jobs?limit=2{after}")
        assert (status, page["object"]) == (200, "list")
        seen += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert seen == ids[::-1]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1e1", "٣", "9" * 99])
async def test_a_limit_that_is_none_is_named(made: Rig, limit: str) -> None:
    status, _, body = await call(made, "GET", f"/v1/jobs?limit={limit}")
    assert (status, body["error"]["param"]) == (400, "limit")


async def test_places_go_up_as_jobs_before_are_done(made: Rig) -> None:
    busy(made)
    places = [(await ask(made))[1]["location"] for _ in range(3)]
    jobs = [(await call(made, "GET", where))[2] for where in places]
    assert [job["position"] for job in jobs] == [1, 2, 3]
    assert jobs[0]["estimate_s"] < jobs[2]["estimate_s"]
    assert (await call(made, "DELETE", places[0]))[2]["status"] == "cancelled"
    assert (await call(made, "GET", places[2]))[2]["position"] == 2


async def test_what_waits_is_cancelled_at_once_and_what_runs_at_its_replica(made: Rig) -> None:
    busy(made)
    _, headers, _ = await ask(made)
    status, _, job = await call(made, "POST", headers["location"] + "/cancel")
    assert (status, job["status"]) == (200, "cancelled")
    assert (await call(made, "DELETE", headers["location"]))[2]["status"] == "cancelled", "twice is as once"
    replica = made.replicas[0]
    replica.behaviour = Behaviour(first_token_gate=asyncio.Event())
    calm(made)
    _, headers, _ = await ask(made)
    await made.until(lambda: replica.running == 1)
    status, _, job = await call(made, "DELETE", headers["location"])
    assert (status, job["status"], job["cancelling"]) == (202, "running", True)
    await until(made, headers["location"], "cancelled")
    await made.until(lambda: replica.running == 0)
    status, _, body = await call(made, "GET", headers["location"] + "/result")
    assert (status, body["error"]["code"]) == (409, "job_cancelled")


async def test_a_result_that_is_not_there_yet_says_when_to_come_back(made: Rig) -> None:
    busy(made)
    _, headers, _ = await ask(made)
    status, headers, body = await call(made, "GET", headers["location"] + "/result")
    assert (status, body["error"]["code"]) == (409, "job_not_over")
    assert int(headers["retry-after"]) >= 1


# --- worked off --------------------------------------------------------------------------------------------


async def test_a_replica_that_fails_costs_an_attempt_and_one_that_never_mends_ends_the_job(
    tmp_path: Path,
) -> None:
    async with rig(1, store=tmp_path / "s.db", profile="naive", job_attempts=2) as made:
        made.replicas[0].script.append(Behaviour(status=500))
        _, headers, _ = await ask(made)
        assert (await until(made, headers["location"], "done"))["attempts"] == 2
        made.replicas[0].behaviour = Behaviour(status=500)
        _, headers, _ = await ask(made)
        job = await until(made, headers["location"], "failed")
        assert job["attempts"] == 2
        assert "502 upstream_lost" in job["reason"]


async def test_what_the_replica_finds_wrong_is_not_tried_again(made: Rig) -> None:
    made.replicas[0].behaviour = Behaviour(status=400)
    _, headers, _ = await ask(made)
    job = await until(made, headers["location"], "failed")
    assert job["attempts"] == 1
    assert job["error"]["message"]


async def test_jobs_wait_while_there_is_no_room_and_cost_no_attempt(made: Rig) -> None:
    busy(made)
    _, headers, _ = await ask(made)
    assert (await ask(made, {}))[0] == 200, "callers are answered meanwhile"
    assert (await call(made, "GET", headers["location"]))[2]["status"] == "queued"
    calm(made)
    assert (await until(made, headers["location"], "done"))["attempts"] == 1


async def test_jobs_leave_slots_free_and_give_theirs_back_to_callers_who_wait(tmp_path: Path) -> None:
    """The order is what counts: calls that came after the jobs are answered, and the jobs are done in the end."""
    slots = 8
    async with rig(1, store=tmp_path / "s.db", max_num_seqs=slots) as made:
        replica = made.replicas[0]
        gate = asyncio.Event()
        replica.behaviour = Behaviour(first_token_gate=gate)
        jobs = [
            (await ask(made, {**ASYNC, public.HEADER_REQUEST_ID: f"j{n}"}))[1]["location"] for n in range(20)
        ]
        await made.until(lambda: replica.running >= 1)
        await until(made, jobs[0], "running")
        limits: list[float] = []  # it moves meanwhile

        def full() -> bool:
            limits.append(made.gateway.pipeline.admission.limit)  # type: ignore[union-attr]
            return replica.running >= 1 and not has_room(made.gateway, Spare())

        await made.until(full)
        for _ in range(5):  # and no more, however often it is looked
            await asyncio.sleep(0.06)
            full()
            assert replica.running <= max(limits) * 0.75
        most = replica.running
        replica.behaviour = Behaviour()
        chats = await asyncio.gather(*(ask(made, {}) for _ in range(slots)))
        assert [status for status, _, _ in chats] == [200] * slots, "though every job still hangs"
        held = [(await call(made, "GET", where))[2]["status"] for where in jobs[:most]]
        assert "done" not in held
        gate.set()
        for where in jobs:
            assert (await until(made, where, "done"))["attempts"] <= 2
        await made.idle()


async def test_two_gateways_work_off_one_queue_and_one_takes_over_what_the_other_lost(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    async with (
        rig(1, store=file, job_lease_s=0.5, ladder_dwell_s=0.25) as one,
        rig(1, store=file, job_lease_s=0.5, ladder_dwell_s=0.25) as two,
    ):
        busy(one)
        busy(two)
        _, headers, _ = await ask(one)
        queue = SqlQueue(one.gateway.state.store, QueueRules(lease_s=0.3))  # type: ignore[arg-type]
        lost = await queue.lease("a gateway that was killed")
        assert lost is not None
        calm(two)
        job = await until(one, headers["location"], "done")
        assert job["attempts"] == 2
        assert (len(one.replicas[0].seen), len(two.replicas[0].seen)) == (0, 1)
        with pytest.raises(LeaseLost):
            await queue.extend(lost)


async def test_a_gateway_that_ends_gives_its_jobs_back(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    async with rig(1, store=file, ladder_dwell_s=0.25) as other:
        busy(other)
        async with rig(1, store=file) as ending:
            ending.replicas[0].behaviour = Behaviour(first_token_gate=asyncio.Event())
            _, headers, _ = await ask(ending)
            await until(ending, headers["location"], RUNNING)
        job = (await call(other, "GET", headers["location"]))[2]
        assert (job["status"], job["attempts"]) == ("queued", 0), "at once, not when the lease has run out"
        calm(other)
        await until(other, headers["location"], "done")


async def test_a_tool_that_acted_before_its_gateway_was_lost_does_not_act_again(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    pay = {"method": "submit_transfer", "params": {"from": "a", "to": "b", "amount": "1"}}
    options: dict[str, Any] = {"job_lease_s": 0.4, "idempotency_lease_s": 0.4}
    async with real_tool() as tool, rig(1, store=file, **options) as made:
        made.gateway.discovery.tool_address = tool.address
        made.replicas[0].script.append(Behaviour(status=500))  # after the tool has acted
        status, headers, _ = await ask(made, {**ASYNC, public.HEADER_IDEMPOTENCY_KEY: "k"}, tool_call=pay)
        assert status == 202
        await until(made, headers["location"], lambda job: job["status"] in ("done", "failed"))
        assert len(await tool.effects()) == 1
        assert (await ask(made, tool_call=pay))[0] == 400, "what acts needs a key, job or not"


async def test_metrics_tell_of_jobs(made: Rig) -> None:
    busy(made)
    _, headers, _ = await ask(made, {**ASYNC, public.HEADER_CLASS: "summary"})
    queued = f'{public.METRIC_JOBS_QUEUED}{{class="summary"}} 1.0'
    await made.until(lambda: queued in made.gateway.metrics.render().decode())
    calm(made)
    await until(made, headers["location"], "done")
    text = made.gateway.metrics.render().decode()
    for outcome in ("accepted", "done"):
        assert f'{public.METRIC_JOBS}{{outcome="{outcome}"}} 1.0' in text


async def test_a_job_that_makes_way_is_given_back_however_often_it_is_told_to(
    made: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store takes its time callers go on waiting, and the job is looked at again."""
    assert made.gateway.state.jobs is not None
    queue, replica = made.gateway.state.jobs.queue, made.replicas[0]
    release = queue.release

    async def slowly(*given: Any, **named: Any) -> None:
        await asyncio.sleep(0.3)
        await release(*given, **named)

    monkeypatch.setattr(queue, "release", slowly)
    replica.behaviour = Behaviour(first_token_gate=asyncio.Event())
    _, headers, _ = await ask(made)
    await made.until(lambda: replica.running == 1)
    monkeypatch.setattr("cluster.gateway.jobs_runner.has_room", lambda *_: False)
    monkeypatch.setattr("cluster.gateway.jobs_runner.someone_waits", lambda _: True)
    job = await until(made, headers["location"], "queued")
    assert job["attempts"] == 0


async def test_an_error_of_the_queue_does_not_end_the_work_on_jobs(
    made: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made.gateway.state.jobs is not None
    queue = made.gateway.state.jobs.queue

    async def fails_once(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    monkeypatch.setattr(queue, "lease", fails_once)
    _, headers, _ = await ask(made)
    await until(made, headers["location"], "done")


async def test_a_job_that_makes_way_before_its_work_has_begun_is_given_back_too(
    made: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made.gateway.state.jobs is not None
    leased = asyncio.Event()
    lease = made.gateway.state.jobs.queue.lease

    async def told(owner: str) -> Any:
        taken = await lease(owner)
        if taken is not None:
            leased.set()
        return taken

    monkeypatch.setattr(made.gateway.state.jobs.queue, "lease", told)
    monkeypatch.setattr("cluster.gateway.jobs_runner.has_room", lambda *_: not leased.is_set())
    monkeypatch.setattr("cluster.gateway.jobs_runner.someone_waits", lambda _: True)
    _, headers, _ = await ask(made)
    await leased.wait()
    job = await until(made, headers["location"], "queued")
    assert job["attempts"] == 0
