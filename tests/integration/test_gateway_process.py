"""The gateway as a process: how it starts, what it says when it cannot, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.links import FakeLinks
from tests.fakes.replica import MODEL, Behaviour, FakeReplica, fake_replica
from tests.ports import free_port


@dataclass
class Running:
    """A gateway process in front of one fake replica."""

    process: asyncio.subprocess.Process
    url: str
    admin_url: str
    replica: FakeReplica


@pytest.fixture(autouse=True)
def _run_dir_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway's store is in it."""
    monkeypatch.setenv("BROWNOUT_RUN_DIR", str(tmp_path / "run"))


async def start(**settings: object) -> asyncio.subprocess.Process:
    environment = {f"BROWNOUT_{name.upper()}": str(value) for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cluster.gateway",
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    links = FakeLinks()
    await links.start()
    ports = free_port(), free_port()
    async with fake_replica() as replica:
        await links.set([("replica-0.a", replica.address)])
        process = await start(
            port_links=links.url.rsplit(":", 1)[1],
            port_gateway=ports[0],
            port_gateway_admin=ports[1],
            stall_timeout_s=60,
        )
        made = Running(process, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", replica)
        try:
            await ready(made)
            yield made
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
            await links.stop()


async def ready(made: Running) -> None:
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            assert made.process.returncode is None
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{made.admin_url}/readyz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)


async def test_on_sigterm_it_stops_accepting_lets_calls_end_and_exits_with_0(running: Running) -> None:
    gate = asyncio.Event()
    running.replica.behaviour = Behaviour(token_gate=gate)
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 5, "stream": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{running.url}/v1/completions", json=body) as response:
            await response.content.readany()
            running.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while True:
                    try:
                        async with session.get(f"{running.url}/healthz"):
                            await asyncio.sleep(0.02)
                    except aiohttp.ClientError:
                        break
            assert running.process.returncode is None
            gate.set()
            rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
    async with asyncio.timeout(20):
        assert await running.process.wait() == 0


async def test_an_idle_gateway_with_a_waiting_admin_client_ends_too(running: Running) -> None:
    async with aiohttp.ClientSession() as session:
        path = "/admin/wait?replica=replica-0&streaming=1&timeout_s=300"
        waiting = asyncio.ensure_future(session.get(running.admin_url + path))
        await asyncio.sleep(0.1)
        running.process.send_signal(signal.SIGINT)
        assert (await waiting).status == 408
    async with asyncio.timeout(20):
        assert await running.process.wait() == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"header_timeout_s": "soon"}, "header_timeout_s"),
        ({"port_gateway": 0}, "port_gateway"),
    ],
)
async def test_bad_settings_are_named_and_end_it_with_4(settings: dict[str, object], said: str) -> None:
    process = await start(**settings)
    _, errors = await process.communicate()
    assert process.returncode == 4
    assert said in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_a_taken_port_is_named_and_ends_it_with_4() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start(port_gateway=port, port_gateway_admin=free_port())
        _, errors = await process.communicate()
    assert process.returncode == 4
    assert str(port) in errors.decode()
    assert "port_gateway" in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_a_tenants_file_that_cannot_be_used_is_named_and_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    for text, said in ((None, "cannot be read"), ("[tenants.acme]\n", "'salt_secret' is missing")):
        if text is not None:
            file.write_text(text)
        process = await start(tenants_file=file, port_gateway=free_port(), port_gateway_admin=free_port())
        _, stderr = await process.communicate()
        assert process.returncode == 4
        assert str(file) in stderr.decode()
        assert said in stderr.decode()
