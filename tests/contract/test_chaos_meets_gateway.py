"""What the chaos package relies on, asserted of its one-process stand-in and of the real gateway alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from chaos.admin import Admin, AdminError
from chaos.events import EventCopier, awaiting_at
from chaos.history import CallRecord, GatewayEventRecord
from chaos.load.client import LoadClient
from chaos.load.prompts import Ask
from chaos.signals import gateway_reading
from chaos.substrate import Endpoints
from chaos.waiting import until
from cluster import public
from tests.fakes.cluster import FakeCluster
from tests.fakes.gateway import rig

ASKED = Ask("how does the ledger settle", max_tokens=6, stream=True)


@contextlib.asynccontextmanager
async def stand_in() -> AsyncIterator[Endpoints]:
    async with FakeCluster(replicas_wanted=2).serving() as cluster:
        yield Endpoints(cluster.url, cluster.url, cluster.url, cluster.url)


@contextlib.asynccontextmanager
async def real_gateway() -> AsyncIterator[Endpoints]:
    async with rig(2) as gateway:
        for replica in gateway.replicas:
            replica.behaviour.token_interval_s = 0.005
        yield Endpoints(gateway.url, gateway.admin_url, gateway.links.url, "")


@pytest.fixture(params=[stand_in, real_gateway], ids=["stand-in", "gateway"])
async def endpoints(request: pytest.FixtureRequest) -> AsyncIterator[Endpoints]:
    async with request.param() as found:
        yield found


@pytest.fixture
async def admin(endpoints: Endpoints) -> AsyncIterator[Admin]:
    async with Admin(endpoints) as one:
        yield one


async def one_call(endpoints: Endpoints, asked: Ask = ASKED, request_id: str = "call-1") -> CallRecord:
    async with LoadClient(endpoints.base_url, public.MODEL_NAME, 10.0) as client:
        return await client.call(asked, "control", 0, 0.0, time.time(), request_id)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_is_whole_and_says_who_answered(
    endpoints: Endpoints, admin: Admin, stream: bool
) -> None:
    record = await one_call(endpoints, Ask("how", 6, stream))
    assert (record.outcome, record.error, record.status) == ("ok", "", 200)
    assert (record.output_tokens, record.finish_reason, record.attempts) == (6, "length", 1)
    assert record.prompt_tokens > 0
    assert record.replica in {link.name for link in await admin.replica_links()}
    assert (len(record.token_at) > 0) is stream
    assert record.done is stream


async def test_the_model_has_a_name(admin: Admin) -> None:
    assert await admin.model()


async def test_a_profile_is_set_and_read_back(admin: Admin) -> None:
    await admin.set_profile("resilient", ["retry"])
    assert await admin.profile() == ("resilient", ("retry",))
    await admin.set_profile("naive")
    assert (await admin.profile())[0] == "naive"


async def test_the_events_of_a_call_tell_its_attempt(endpoints: Endpoints, admin: Admin) -> None:
    await one_call(endpoints, request_id="before")
    copied: list[GatewayEventRecord] = []
    copier = EventCopier(admin, "control", copied.append)
    await copier.begin()
    record = await one_call(endpoints, request_id="call-2")
    await copier.copy()
    mine = [event for event in copied if event.detail.get("request_id") == "call-2"]
    assert len(mine) == len([event for event in copied if "request_id" in event.detail]), "none from before"
    names = [event.event for event in mine]
    for name in ("attempt_started", "attempt_first_token", "attempt_ended", "call_ended"):
        assert names.count(name) == 1
    started = next(event for event in mine if event.event == "attempt_started")
    assert started.detail["replica"] == record.replica
    token = next(event for event in mine if event.event == "attempt_first_token")
    between = (started.at + token.at) / 2
    assert awaiting_at(mine, record.replica, between, between) == ["call-2"]
    assert copier.dropped == 0
    assert all(record.sent_at - 1 <= event.at <= record.ended_at + 1 for event in mine), "one clock"


async def test_a_wait_is_answered_while_the_condition_holds(endpoints: Endpoints, admin: Admin) -> None:
    waits = [
        asyncio.create_task(admin.wait(link.name, {"awaiting": 1}, 10))
        for link in await admin.replica_links()
    ]
    await asyncio.sleep(0)
    calls = [asyncio.create_task(one_call(endpoints, request_id=f"wait-{n}")) for n in range(8)]
    done, pending = await asyncio.wait(waits, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    held = next(iter(done)).result()
    assert held is not None
    assert held.awaiting
    assert set(held.awaiting) <= {f"wait-{n}" for n in range(8)}
    assert abs(held.at - time.time()) < 5
    await asyncio.gather(*calls)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


async def test_a_wait_whose_condition_never_holds_is_none(admin: Admin) -> None:
    link = (await admin.replica_links())[0]
    assert await admin.wait(link.name, {"streaming": 3, "awaiting": 1}, 0.05) is None


async def test_in_flight_returns_to_zero(endpoints: Endpoints, admin: Admin) -> None:
    await asyncio.gather(*(one_call(endpoints, request_id=f"zero-{n}") for n in range(5)))

    async def quiet() -> bool:
        held = await admin.in_flight()
        return held.calls == 0 and held.attempts == ()

    assert await until(quiet, 10, 0.01)


async def test_the_metrics_give_signals(endpoints: Endpoints, admin: Admin) -> None:
    before = gateway_reading(await admin.text(f"{endpoints.admin_url}/metrics"), 0.0)
    await one_call(endpoints)

    async def counted() -> bool:
        now = gateway_reading(await admin.text(f"{endpoints.admin_url}/metrics"), 1.0)
        return (now.calls or 0) == (before.calls or 0) + 1

    assert await until(counted, 10, 0.01)
    assert before.gauges[public.METRIC_QUEUE_DEPTH] == 0
    assert before.gauges[public.METRIC_LIVE_REPLICAS] == 2
    assert before.retries == 0
    assert before.refused == 0


async def test_a_service_that_is_gone_is_named() -> None:
    async with stand_in() as endpoints:
        pass
    async with Admin(endpoints) as admin:
        with pytest.raises(AdminError, match=r"/admin/inflight.*brownout status"):
            await admin.in_flight()
