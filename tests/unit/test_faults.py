"""Faults against fakes: the right target, nothing beyond the blast radius, and always taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.admin import Admin
from chaos.faults import FAULTS, BlastRadius, FaultContext, FaultError
from chaos.faults.burst import Burst
from chaos.faults.force import InForce
from chaos.faults.freeze_replica import FreezeReplica
from chaos.faults.kill_replica import KillReplica
from chaos.faults.latency import TOXIC_NAME, Latency
from chaos.heal import heal
from chaos.load.surge import Surge
from chaos.names import UnknownName
from chaos.substrate import SubstrateError
from chaos.tenants import Tenants
from chaos.undo import UndoLog
from tests.fakes.cluster import FakeCluster, FakeSubstrate


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(restart_s=0.05).serving() as running:
        yield running


@pytest.fixture
async def context(cluster: FakeCluster, tmp_path: Path) -> AsyncIterator[FaultContext]:
    substrate = FakeSubstrate(cluster)
    endpoints = await substrate.endpoints()
    async with Admin(endpoints) as admin:
        tenants = Tenants(tmp_path / "tenants.toml", {"app": "bo_a1b2c3_secret"})
        yield FaultContext(substrate, endpoints, admin, tenants=tenants)


TARGETS = {
    "latency": "tool",
    "burst": "client",
    "kill_gateway": "gateway",
    "store_down": "store",
    "tool_lose_answer": "tool",
    "revoke_key": "app",
    "new_revision": "gateway",
}


def asked(context: FaultContext) -> list[str]:
    assert isinstance(context.substrate, FakeSubstrate)
    return context.substrate.asked


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_every_fault_is_safe_to_revert_twice_and_when_it_was_never_injected(
    context: FaultContext, kind: str
) -> None:
    target = TARGETS.get(kind, "replica-0")
    fault = await FAULTS[kind].resolve(context, target, {})
    await fault.revert()
    await fault.revert()
    assert not any(word.startswith("kill") for word in asked(context))


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_every_fault_can_be_rebuilt_from_its_undo_entry(context: FaultContext, kind: str) -> None:
    target = TARGETS.get(kind, "replica-0")
    fault = await FAULTS[kind].resolve(context, target, {})
    again = FAULTS[kind].restored(context, fault.undo_data())
    assert again.target == fault.target
    assert again.undo_data() == fault.undo_data()


@pytest.mark.parametrize("kind", sorted(FAULTS))
async def test_every_fault_refuses_an_unknown_target_and_an_unknown_setting(
    context: FaultContext, kind: str
) -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'replica-|known are: (gateway|store|tool|app)"):
        await FAULTS[kind].resolve(context, "replica-9", {})
    with pytest.raises(UnknownName, match=f"setting of fault '{kind}'"):
        await FAULTS[kind].resolve(context, "replica-0", {"latncy_s": 1})


async def test_a_replica_is_found_by_label_or_link_and_is_dead_when_verified(
    cluster: FakeCluster, context: FaultContext
) -> None:
    fault = await KillReplica.resolve(context, "replica-1", {})
    link = fault.target
    assert link.startswith("replica-1.")
    assert (await KillReplica.resolve(context, link, {})).target == link
    await fault.inject()
    proof = await fault.verify()
    assert proof.ok
    assert asked(context) == [f"kill {link}"]


async def test_the_last_replica_is_never_killed(cluster: FakeCluster, context: FaultContext) -> None:
    for replica in cluster.listed[1:]:
        replica.died.set()
    with pytest.raises(BlastRadius, match="at least 1 must survive"):
        await KillReplica.resolve(context, "replica-0", {})


async def test_latency_is_on_the_link_and_is_measured(cluster: FakeCluster, context: FaultContext) -> None:
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.2})
    assert cluster.toxics["tool"] == []
    await fault.inject()
    (toxic,) = cluster.toxics["tool"]
    assert (toxic["type"], toxic["name"], toxic["attributes"]) == (
        "latency",
        TOXIC_NAME,
        {"latency": 200, "jitter": 0},
    )
    proof = await fault.verify()
    assert proof.ok
    assert proof.detail["during_s"] - proof.detail["before_s"] >= 0.16
    await fault.revert()
    assert cluster.toxics["tool"] == []


async def test_latency_that_is_not_felt_is_not_verified(cluster: FakeCluster, context: FaultContext) -> None:
    """A toxic may be there and do nothing, e.g. on a link that nobody uses."""
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.2})
    await fault.inject()
    cluster.slow_tool = False
    proof = await fault.verify()
    assert not proof.ok
    assert proof.detail["has_toxic"] is True


async def test_a_toxic_that_is_gone_is_not_verified(cluster: FakeCluster, context: FaultContext) -> None:
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.05})
    await fault.inject()
    cluster.toxics["tool"].clear()
    assert not (await fault.verify()).ok


@pytest.mark.parametrize(
    "settings", [{"latency_s": 0}, {"latency_s": -1}, {"latency_s": 61}, {"jitter_s": 2}]
)
async def test_senseless_latency_is_refused(context: FaultContext, settings: dict[str, float]) -> None:
    with pytest.raises(FaultError, match="latency_s"):
        await Latency.resolve(context, "tool", settings)


async def test_a_fault_is_on_disk_before_it_is_injected_and_gone_after(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    undo = UndoLog(tmp_path)
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.05})
    async with InForce(fault, undo, "fake", 30) as held:
        assert [entry.kind for entry in undo.entries()] == ["latency"]
        assert cluster.toxics["tool"] == []
        await held.inject()
        assert cluster.toxics["tool"]
    assert cluster.toxics["tool"] == []
    assert undo.entries() == []


async def test_a_fault_ends_by_its_time_limit_without_anybody_asking(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    undo = UndoLog(tmp_path)
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.05})
    async with InForce(fault, undo, "fake", 0.05) as held:
        await held.inject()
        async with asyncio.timeout(5):
            await held.reverted.wait()
        assert held.expired
        assert cluster.toxics["tool"] == []
        assert undo.entries() == []


async def test_a_fault_is_reverted_when_what_it_surrounds_fails(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.05})
    with pytest.raises(ZeroDivisionError):
        async with InForce(fault, UndoLog(tmp_path), "fake", 30) as held:
            await held.inject()
            raise ZeroDivisionError
    assert cluster.toxics["tool"] == []


async def test_a_revert_that_fails_keeps_the_entry_and_heal_tries_again(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = UndoLog(tmp_path)
    fault = await Latency.resolve(context, "tool", {"latency_s": 0.05})

    async def broken(self: Latency) -> None:
        raise SubstrateError("the link proxy does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Latency, "revert", broken)
        with pytest.raises(SubstrateError):
            async with InForce(fault, undo, "fake", 30) as held:
                await held.inject()
        assert len(undo.entries()) == 1
        with pytest.raises(SubstrateError, match="still in force"):
            await heal(undo, context.substrate)
        assert len(undo.entries()) == 1
    assert await heal(undo, context.substrate) == ["latency on tool: reverted"]
    assert cluster.toxics["tool"] == []
    assert undo.entries() == []


async def test_heal_of_a_cluster_that_is_gone_clears_the_log(context: FaultContext, tmp_path: Path) -> None:
    undo = UndoLog(tmp_path)
    undo.add("latency", "fake", "tool", {"proxy": "tool", "settings": {"latency_s": 1.0, "jitter_s": 0.0}})
    undo.add("latency", "other", "tool", {})
    assert isinstance(context.substrate, FakeSubstrate)
    context.substrate.running = False
    assert await heal(undo, context.substrate) == ["latency on tool: gone with its cluster"]
    assert [entry.substrate for entry in undo.entries()] == ["other"]


async def test_heal_does_not_touch_what_it_does_not_know(context: FaultContext, tmp_path: Path) -> None:
    undo = UndoLog(tmp_path)
    undo.add("meteor", "fake", "replica-0", {})
    with pytest.raises(SubstrateError, match="'meteor', which this version does not know"):
        await heal(undo, context.substrate)
    assert len(undo.entries()) == 1


async def test_a_frozen_replica_is_green_over_its_link_and_gives_no_token(
    cluster: FakeCluster, context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.freeze_replica.SILENT_S", 0.2)
    fault = await FreezeReplica.resolve(context, "replica-1", {})
    assert (await fault.verify()).ok is False, "nothing is frozen yet"
    await fault.inject()
    proof = await fault.verify()
    assert proof.ok
    assert proof.detail["engine_stopped"] is True
    assert proof.detail["health_answered_s"] is not None
    await fault.revert()
    assert asked(context) == [f"freeze {fault.target}", f"thaw {fault.target}"]
    assert (await fault.verify()).ok is False


async def test_a_freeze_that_stopped_nothing_is_not_verified(
    cluster: FakeCluster, context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.freeze_replica.SILENT_S", 0.2)
    assert isinstance(context.substrate, FakeSubstrate)
    context.substrate.immortal = True
    fault = await FreezeReplica.resolve(context, "replica-1", {})
    await fault.inject()
    proof = await fault.verify()
    assert not proof.ok
    assert proof.detail["no_token_for_s"] is None, "the probe got its token"


async def test_a_replica_that_gives_no_token_to_begin_with_cannot_be_frozen(
    cluster: FakeCluster, context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.freeze_replica.BEFORE_WITHIN_S", 0.1)
    cluster.listed[0].thawed.clear()
    with pytest.raises(FaultError, match="gives no token"):
        await FreezeReplica.resolve(context, "replica-0", {})


async def test_the_last_replica_is_never_frozen(cluster: FakeCluster, context: FaultContext) -> None:
    for replica in cluster.listed[1:]:
        replica.died.set()
    with pytest.raises(BlastRadius, match="at least 1 must be left"):
        await FreezeReplica.resolve(context, "replica-0", {})


async def test_heal_thaws_what_a_run_that_died_left_frozen(
    cluster: FakeCluster, context: FaultContext, tmp_path: Path
) -> None:
    undo = UndoLog(tmp_path)
    fault = await FreezeReplica.resolve(context, "replica-2", {})
    undo.add(fault.kind, "fake", fault.target, fault.undo_data())
    await fault.inject()
    assert not cluster.listed[2].thawed.is_set()
    assert await heal(undo, context.substrate) == [f"freeze_replica on {fault.target}: reverted"]
    assert cluster.listed[2].thawed.is_set()


async def test_a_burst_opens_the_gate_and_is_proven_by_what_arrives_at_the_gateway(
    cluster: FakeCluster, context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.burst.LOOK_AFTER_S", 0.02)
    monkeypatch.setattr("chaos.faults.burst.VERIFY_WITHIN_S", 0.3)
    surge = Surge(rate_per_s=10, extra_per_s=20)
    fault = await Burst.resolve(replace(context, surge=surge), "client", {"times": 3})
    waits = asyncio.ensure_future(surge.opened())
    await fault.inject()
    assert await waits is True
    assert not (await fault.verify()).ok, "nothing has arrived"
    cluster.ended += 1000
    surge.sent = 900
    proof = await fault.verify()
    assert proof.ok
    assert proof.detail["seen_per_s"] > proof.detail["wanted_per_s"] == 20
    await fault.revert()
    assert await surge.opened() is False


async def test_arrivals_that_rise_without_an_extra_call_sent_prove_no_burst(
    cluster: FakeCluster, context: FaultContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.faults.burst.LOOK_AFTER_S", 0.02)
    fault = await Burst.resolve(replace(context, surge=Surge(10, 20)), "client", {"times": 3})
    await fault.inject()
    cluster.ended += 1000
    assert not (await fault.verify()).ok


async def test_a_burst_is_only_on_the_clients_link_and_only_upwards(context: FaultContext) -> None:
    with pytest.raises(FaultError, match="'client'"):
        await Burst.resolve(context, "tool", {})
    with pytest.raises(FaultError, match="above 1"):
        await Burst.resolve(context, "client", {"times": 1})


async def test_a_gate_that_was_closed_stays_closed() -> None:
    surge = Surge(1, 1)
    surge.close()
    surge.open()
    assert await surge.opened() is False
