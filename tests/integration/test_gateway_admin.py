"""The admin API: profiles, what is in flight, waiting for a state, events, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster import public
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL, Behaviour

BODY: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 5, "stream": True}


@pytest.fixture
async def made() -> AsyncIterator[Rig]:
    async with rig(2, header_timeout_s=30, first_token_timeout_s=30, stall_timeout_s=30) as built:
        yield built


async def get(made: Rig, path: str) -> tuple[int, Any]:
    async with made.http.get(made.admin_url + path) as response:
        return response.status, await response.json()


async def put(made: Rig, body: Any) -> tuple[int, Any]:
    async with made.http.put(f"{made.admin_url}/admin/profile", json=body) as response:
        return response.status, await response.json()


async def ask(made: Rig, **fields: Any) -> str:
    async with made.http.post(f"{made.url}/v1/completions", json={**BODY, **fields}) as response:
        return await response.text()


async def test_a_profile_is_read_and_changed(made: Rig) -> None:
    assert await get(made, "/admin/profile") == (
        200,
        {
            "profile": "resilient",
            "without": [],
            "with": [],
            "policies": list(public.POLICIES),
            "overrides": {},
        },
    )
    status, said = await put(
        made, {"profile": "resilient", "without": ["retry"], "overrides": {"header_timeout_s": 0.5}}
    )
    assert status == 200
    assert said["policies"] == [name for name in public.POLICIES if name != "retry"]
    assert said["overrides"] == {"header_timeout_s": 0.5}
    assert (await put(made, {"profile": "naive"}))[1]["policies"] == []


async def test_a_policy_of_no_profile_can_be_switched_on(made: Rig) -> None:
    status, said = await put(made, {"profile": "resilient", "with": ["hedging"], "without": ["retry"]})
    assert (status, said["with"]) == (200, ["hedging"])
    assert "hedging" in said["policies"]
    assert "retry" not in said["policies"]
    assert (await put(made, {"profile": "retry-only"}))[1]["policies"] == ["retry", "timeouts"]
    assert (await put(made, {"profile": "resilient"}))[1]["with"] == []


async def test_what_is_configured_to_be_on_is_on_again_after_other_profiles() -> None:
    async with rig(replicas=1, with_policies="hedging, throttling") as made:
        assert {"hedging", "throttling"} <= set((await get(made, "/admin/profile"))[1]["policies"])
        assert (await put(made, {"profile": "naive"}))[1]["policies"] == []
        assert (await put(made, {"profile": "resilient"}))[1]["with"] == ["hedging", "throttling"]
        assert (await put(made, {"profile": "resilient", "with": []}))[1]["with"] == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"profile": "resiliant"}, "resilient"),
        ({"profile": "resilient", "without": ["retrys"]}, "retry"),
        ({"profile": "resilient", "with": ["hedgings"]}, "hedging"),
        ({"profile": "resilient", "overrides": {"header_timeout": 1}}, "header_timeout_s"),
        ({"profile": "resilient", "overrides": {"header_timeout_s": -1}}, "header_timeout_s"),
        ({"profile": "resilient", "overrides": {"port_client": 1}}, "port_client"),
        ({"without": []}, "profile"),
        ({"profile": "naive", "wihtout": []}, "wihtout"),
        ([], "object"),
    ],
)
async def test_a_bad_profile_changes_nothing_and_is_told_what_is_wrong(
    made: Rig, body: Any, said: str
) -> None:
    before = made.gateway.pipeline
    status, answer = await put(made, body)
    assert status == 400
    assert said in str(answer)
    assert made.gateway.pipeline is before


async def test_waiting_ends_at_the_moment_when_the_condition_holds(made: Rig) -> None:
    gate, first = asyncio.Event(), asyncio.Event()
    made.replicas[0].behaviour = Behaviour(token_gate=gate, stall_after=1)
    await made.announce(("replica-0.a", made.replicas[0]))
    waiting = asyncio.ensure_future(
        get(made, "/admin/wait?replica=replica-0&streaming=2&awaiting=1&timeout_s=20")
    )
    calls = [asyncio.ensure_future(ask(made)) for _ in range(2)]
    await made.until(lambda: [one.phase for one in made.gateway.inflight.attempts] == ["streaming"] * 2)
    made.replicas[0].behaviour = Behaviour(first_token_gate=first)
    assert not waiting.done()
    began = time.time()
    calls.append(asyncio.ensure_future(ask(made)))
    status, said = await waiting
    assert status == 200
    assert said["replica"] == "replica-0.a"
    assert (len(said["streaming"]), len(said["awaiting"])) == (2, 1)
    assert began <= said["at"] <= time.time()
    _, inflight = await get(made, "/admin/inflight")
    assert inflight["calls"] == 3
    assert {one["request_id"] for one in inflight["attempts"]} == {*said["streaming"], *said["awaiting"]}
    assert {one["phase"] for one in inflight["attempts"]} <= {"headers", "first_token", "streaming"}
    first.set()
    gate.set()
    await asyncio.gather(*calls)
    await made.idle()


async def test_waiting_for_what_never_comes_ends_with_408(made: Rig) -> None:
    status, said = await get(made, "/admin/wait?replica=replica-1&streaming=1&timeout_s=0.1")
    assert status == 408
    assert "replica-1" in said["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/admin/wait",
        "/admin/wait?replica=x&streaming=many",
        "/admin/wait?replica=x&timeout_s=-1",
        "/admin/events?after=x",
    ],
)
async def test_bad_queries_are_refused(made: Rig, path: str) -> None:
    status, said = await get(made, path)
    assert status == 400
    assert said["error"]


async def test_waiting_ends_when_the_gateway_does() -> None:
    async with rig(1) as made:
        waiting = asyncio.ensure_future(get(made, "/admin/wait?replica=replica-0&streaming=1&timeout_s=300"))
        await made.until(lambda: made.gateway.inflight._waiters)
        made.closing.set()
        assert (await waiting)[0] == 408


async def test_events_tell_a_calls_story(made: Rig) -> None:
    _, before = await get(made, "/admin/events")
    assert [event["event"] for event in before["events"]] == ["upstream_added"] * 2
    headers = {public.HEADER_REQUEST_ID: "mine"}
    async with made.http.post(f"{made.url}/v1/completions", json=BODY, headers=headers) as response:
        await response.read()
    _, page = await get(made, f"/admin/events?after={before['last']}")
    assert [event["event"] for event in page["events"]] == [
        "admitted",
        "attempt_started",
        "attempt_headers",
        "attempt_first_token",
        "attempt_ended",
        "call_ended",
    ]
    assert {event["request_id"] for event in page["events"]} == {"mine"}
    assert [event["seq"] for event in page["events"]] == list(range(3, 9))
    times = [event["at"] for event in page["events"]]
    assert times == sorted(times)
    assert page["dropped"] == 0


async def metrics(made: Rig) -> dict[Any, float]:
    async with made.http.get(f"{made.admin_url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


async def test_metrics_follow_the_calls_through_their_life(made: Rig) -> None:
    gate = asyncio.Event()
    for replica in made.replicas:
        replica.behaviour = Behaviour(first_token_gate=gate)
    idle = await metrics(made)
    assert idle[(public.METRIC_LIVE_REPLICAS,)] == 2
    assert idle[(public.METRIC_HEADROOM,)] == 1
    calls = [asyncio.ensure_future(ask(made)) for _ in range(3)]
    await made.until(lambda: sum(replica.running for replica in made.replicas) == 3)
    busy = await metrics(made)
    assert busy[(public.METRIC_QUEUE_DEPTH,)] == busy[(public.METRIC_IN_FLIGHT,)] == 3
    assert busy[(public.METRIC_ACTIVE_TOKENS,)] == 3 * (1 + 5), "estimated prompt and all of the output"
    assert busy[(public.METRIC_HEADROOM,)] < 1
    gate.set()
    await asyncio.gather(*calls)
    await made.idle()
    done = await metrics(made)
    assert done[(public.METRIC_QUEUE_DEPTH,)] == done[(public.METRIC_ACTIVE_TOKENS,)] == 0
    assert done[public.METRIC_CALLS, "ok"] == done[public.METRIC_ATTEMPTS, "ok"] == 3
    assert done[(f"{public.METRIC_TTFT}_count",)] == 3
    assert done["brownout_tokens_total", "completion"] == 15


async def test_health_and_readiness(made: Rig) -> None:
    assert (await get(made, "/healthz"))[0] == 200
    status, said = await get(made, "/readyz")
    assert status == 200
    assert said["replicas"] == said["in_rotation"] == 2
    made.gateway.draining = True
    assert (await get(made, "/readyz"))[0] == 503
    assert (await get(made, "/healthz"))[0] == 200
    assert (await get(made, "/v1/models"))[0] == 404, "clients' routes are not on the admin port"
