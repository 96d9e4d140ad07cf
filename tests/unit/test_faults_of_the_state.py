"""Faults of what must not be lost: the gateway, the store and the tool's answers, against fakes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.admin import Admin
from chaos.events import EventCopier
from chaos.faults import FaultContext, FaultError
from chaos.faults.kill_gateway import KillGateway
from chaos.faults.new_revision import NewRevision
from chaos.faults.revoke_key import RevokeKey
from chaos.faults.store_down import StoreDown
from chaos.faults.tool_lose_answer import ToolLoseAnswer
from chaos.heal import heal
from chaos.history import GatewayEventRecord
from chaos.substrate import GatewayHandle, StorePlace
from chaos.tenants import Tenants
from chaos.tool import Tool
from chaos.undo import UndoLog
from tests.fakes.cluster import FakeCluster, FakeSubstrate


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster().serving() as running:
        yield running


@pytest.fixture
async def context(cluster: FakeCluster) -> AsyncIterator[FaultContext]:
    substrate = FakeSubstrate(cluster)
    endpoints = await substrate.endpoints()
    async with Admin(endpoints) as admin:
        yield FaultContext(substrate, endpoints, admin)


async def test_a_killed_gateway_is_silent_and_comes_back_with_its_profile(
    cluster: FakeCluster, context: FaultContext
) -> None:
    await context.admin.set_profile("naive", ("x",))
    fault = await KillGateway.resolve(context, "gateway", {})
    await fault.inject()
    assert (await fault.verify()).ok

    await fault.revert()
    assert cluster.gateway == 2
    assert await context.admin.profile() == ("naive", ("x",))
    await fault.revert()
    assert cluster.gateway == 2, "a second revert started another"


async def test_a_gateway_goes_by_the_name_that_the_plan_has_for_it(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def containers() -> list[GatewayHandle]:
        return [GatewayHandle("brownout-gateway-1", "a1")]

    monkeypatch.setattr(context.substrate, "gateways", containers)
    for asked in ("gateway", "brownout-gateway-1"):
        fault = await KillGateway.resolve(context, asked, {})
        assert fault.target == asked, "else the verdict finds the planned fault nowhere"
        restored = KillGateway.restored(context, fault.undo_data())
        assert restored.target == "brownout-gateway-1"


async def test_a_gateway_that_did_not_die_is_not_verified(
    context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.kill_gateway.VERIFY_WITHIN_S", 0.1)
    assert isinstance(context.substrate, FakeSubstrate)
    context.substrate.immortal = True
    fault = await KillGateway.resolve(context, "gateway", {})
    await fault.inject()
    assert not (await fault.verify()).ok


async def test_heal_starts_a_gateway_before_it_asks_it_anything(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    fault, undo = await KillGateway.resolve(context, "gateway", {}), UndoLog(tmp_path)
    undo.add(fault.kind, "fake", fault.target, fault.undo_data())
    await fault.inject()
    assert await heal(undo, context.substrate) == ["kill_gateway on gateway: reverted"]
    assert cluster.gateway == 2


async def test_events_of_a_gateway_that_counts_from_1_again_are_copied(
    cluster: FakeCluster, context: FaultContext
) -> None:
    seen: list[GatewayEventRecord] = []
    copier = EventCopier(context.admin, "arm", seen.append)
    await copier.begin()
    cluster.kill_gateway()
    cluster.start_gateway()
    cluster._event("call_ended", request_id="after")
    await copier.copy()
    assert [one.detail["request_id"] for one in seen] == ["after"]
    assert copier.restarts == 1


async def test_the_link_of_the_store_is_cut_and_mended(cluster: FakeCluster, context: FaultContext) -> None:
    fault = await StoreDown.resolve(context, "store", {})
    await fault.inject()
    assert cluster.cut == {"store"}
    assert (await fault.verify()).ok
    await StoreDown.restored(context, fault.undo_data()).revert()
    assert cluster.cut == set()
    assert not (await fault.verify()).ok


async def test_a_store_that_is_a_file_is_locked_against_every_writer(
    context: FaultContext, tmp_path: Path
) -> None:
    file = tmp_path / "store.db"
    with sqlite3.connect(file, timeout=0) as ours:
        ours.execute("PRAGMA journal_mode = WAL")
        ours.execute("CREATE TABLE t (a)")
        ours.commit()
        assert isinstance(context.substrate, FakeSubstrate)
        context.substrate.place = StorePlace(file=str(file))
        fault = await StoreDown.resolve(context, "store", {})
        assert not (await fault.verify()).ok
        await fault.inject()
        assert (await fault.verify()).ok
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ours.execute("INSERT INTO t VALUES (1)")
        await fault.revert()
        ours.execute("INSERT INTO t VALUES (1)")
    ours.close()


async def test_a_revoked_key_is_refused_until_the_file_is_as_it_was(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text("as it was")
    context = replace(context, tenants=Tenants(file, {"app": "bo_a1b2c3_secret"}))
    fault = await RevokeKey.resolve(context, "app", {})
    await fault.inject()
    proof = await fault.verify()
    assert (proof.ok, proof.detail) == (True, {"key_id": "a1b2c3", "status": 401})
    assert "secret" not in str(fault.undo_data())
    await RevokeKey.restored(context, fault.undo_data()).revert()
    assert file.read_text() == "as it was"
    await fault.revert()


async def test_a_key_that_still_holds_is_not_verified(
    context: FaultContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.revoke_key.VERIFY_WITHIN_S", 0.2)
    fault = await RevokeKey.resolve(
        replace(context, tenants=Tenants(tmp_path / "t.toml", {"app": "bo_a1b2c3_secret"})), "app", {}
    )
    assert not (await fault.verify()).ok


async def test_another_revision_holds_until_it_is_taken_back(
    cluster: FakeCluster, context: FaultContext
) -> None:
    fault = await NewRevision.resolve(context, "gateway", {})
    assert not (await fault.verify()).ok
    await fault.inject()
    assert (await fault.verify()).ok
    await NewRevision.restored(context, fault.undo_data()).revert()
    assert cluster.revision == "r1"


async def test_a_gateway_without_a_store_cannot_lose_it(context: FaultContext) -> None:
    assert isinstance(context.substrate, FakeSubstrate)
    context.substrate.place = None
    with pytest.raises(FaultError, match="without a store"):
        await StoreDown.resolve(context, "store", {})


async def test_the_tool_acts_and_its_answer_is_lost(cluster: FakeCluster, context: FaultContext) -> None:
    fault = await ToolLoseAnswer.resolve(context, "tool", {})
    assert not (await fault.verify()).ok, "its answers come as long as nothing was injected"
    await fault.inject()
    proof = await fault.verify()
    assert proof.ok
    assert proof.detail == {"answer_lost": True, "effects": 1}
    with pytest.raises(FaultError, match="already"):
        await ToolLoseAnswer.resolve(context, "tool", {})
    await fault.revert()
    async with await Tool.of(context.admin, context.substrate) as tool:
        assert await tool.transfer("me", "again") == 3
    assert [effect.transfer.sender for effect in cluster.tool.ledger.effects()][-1] == "me"
