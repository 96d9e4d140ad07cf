"""A local cluster's gateway that is killed and started again: as it was, with other settings, and found by 'down'."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from chaos.substrate import StorePlace
from chaos.substrates.local import LocalSubstrate
from cluster import local, processes
from cluster.bring_up import LocalError, responds
from cluster.exported import Exported
from cluster.gateway_again import have_gateway
from cluster.public import RUN_MARK, ClusterState, claim_run_dir
from tests.fakes.links import FakeLinks
from tests.fakes.replica import fake_replica
from tests.ports import free_ports


@pytest.fixture
async def run_dir(tmp_path: Path) -> AsyncIterator[Path]:
    """A cluster of nothing but a links service and a replica, whose gateway does not run."""
    links, (port, admin) = FakeLinks(), free_ports(2)
    await links.start()
    folder = tmp_path / "run"
    claim_run_dir(folder)
    async with fake_replica() as replica:
        await links.set([("replica-0.a", replica.address)])
        exported = {
            "BROWNOUT_PORT_LINKS": links.url.rsplit(":", 1)[1],
            "BROWNOUT_PORT_GATEWAY": str(port),
            "BROWNOUT_PORT_GATEWAY_ADMIN": str(admin),
            "BROWNOUT_STORE": "sqlite",
            "BROWNOUT_RUN_DIR": str(folder),
            RUN_MARK: "mark-of-the-test",
        }
        Exported.of({**exported, "PATH": "not ours"}).save(folder)
        url = f"http://127.0.0.1:{port}"
        ClusterState(
            substrate="local",
            run_mark="mark-of-the-test",
            base_url=url,
            gateway_url=url,
            admin_url=f"http://127.0.0.1:{admin}",
            links_url=links.url,
            toxiproxy_url=url,
            model="tiny",
            replicas=1,
            pace="off",
            logs=str(folder / "logs"),
        ).save(folder)
        try:
            yield folder
        finally:
            local.down(folder)
            await links.stop()


def profile(folder: Path) -> str:
    state = ClusterState.load(folder)
    assert state is not None
    with urllib.request.urlopen(f"{state.admin_url}/admin/profile", timeout=5) as response:
        return str(response.read())


async def test_a_killed_gateway_is_started_as_it_was_and_ended_by_down(run_dir: Path) -> None:
    substrate = LocalSubstrate(run_dir)
    first = await asyncio.to_thread(have_gateway, run_dir)
    assert await asyncio.to_thread(have_gateway, run_dir) == first, "one that runs is left alone"
    assert await substrate.store() == StorePlace(file=str(run_dir / "store.db"))
    (gateway,) = await substrate.gateways()

    await substrate.kill_gateway(gateway)
    psutil.wait_procs([psutil.Process(first.pid)] if psutil.pid_exists(first.pid) else [], timeout=10)
    assert await substrate.gateway_is_dead(gateway)

    second = await asyncio.to_thread(have_gateway, run_dir, {"BROWNOUT_PROFILE": "naive"})
    assert second.pid != first.pid
    assert '"naive"' in await asyncio.to_thread(profile, run_dir)
    third = await asyncio.to_thread(have_gateway, run_dir, {})
    assert not processes.alive(second), "the one with other settings was ended"
    assert '"resilient"' in await asyncio.to_thread(profile, run_dir)
    ended = await substrate.gateway_command("audit_cli", "verify", "--json")
    assert ended.code in (0, 2), ended.errors

    state = ClusterState.load(run_dir)
    assert state is not None
    assert [one.pid for one in state.processes] == [third.pid]
    assert local.down(run_dir) >= 1
    assert not processes.alive(third)
    assert not responds(f"{state.admin_url}/healthz")
    assert not (run_dir / "environment.json").exists()


def test_what_is_kept_is_for_this_user_alone_and_leaves_the_shell_out(tmp_path: Path) -> None:
    kept = Exported.of({"BROWNOUT_STORE": "postgresql://u:pw@h/d", "HOME": "/h"})
    kept.save(tmp_path)
    assert os.stat(tmp_path / "environment.json").st_mode & 0o077 == 0
    assert Exported.load(tmp_path) == kept
    around = {"HOME": "/h", "https_proxy": "p", "BROWNOUT_PROFILE": "naive"}
    changed = dataclasses.replace(kept, gateway={"BROWNOUT_PROFILE": "resilient"})
    assert changed.environment(around) == {
        "HOME": "/h",
        "BROWNOUT_STORE": "postgresql://u:pw@h/d",
        "BROWNOUT_PROFILE": "resilient",
    }


def test_without_a_cluster_there_is_no_gateway_to_start(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"environment\.json cannot be read"):
        have_gateway(tmp_path)
