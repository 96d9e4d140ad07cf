"""The embedded link proxy over TCP: what the recording of Toxiproxy does not cover, and where it differs on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from cluster.linkproxy import connection
from cluster.linkproxy.server import serving
from tests.contract.toxiproxy import LinkUnderTest
from tests.fakes.tcp import Client, black_hole, bulk, echo, reset, tcp_server, until
from tests.ports import free_ports

SOON_S = 5.0
"""Bound of what must not wait for an upstream; a kernel gives a dial up after two minutes."""


@pytest.fixture
async def api() -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with serving("127.0.0.1", 0, seed=3) as url, aiohttp.ClientSession() as session:
        yield session, url


Api = tuple[aiohttp.ClientSession, str]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def linked(api: Api, handle: Handler, name: str = "link") -> AsyncIterator[LinkUnderTest]:
    async with tcp_server(handle) as port:
        yield await LinkUnderTest.create(*api, name, port)


# --- an upstream that does not answer --------------------------------------------------------------------


async def test_a_black_holed_upstream_holds_up_neither_its_clients_nor_its_updates(api: Api) -> None:
    with black_hole() as port:
        link = await LinkUnderTest.create(*api, "hole", port)
        async with contextlib.AsyncExitStack() as clients:
            waiting = [await clients.enter_async_context(Client.connected(link.port)) for _ in range(5)]
            for client in waiting:
                await client.send(b"hello")
            async with asyncio.timeout(SOON_S):
                assert await link.call("POST", "/toxics", {"type": "latency"}) == 200
                assert await link.call("DELETE", "/toxics/latency_downstream") == 204
                assert await link.call("PATCH", body={"upstream": "127.0.0.1:9"}) == 200
                assert [await client.outcome() for client in waiting] == ["closed"] * 5
        link = await LinkUnderTest.create(*api, "hole2", port)
        async with Client.connected(link.port) as client, asyncio.timeout(SOON_S):
            await client.send(b"hello")
            assert await link.call("DELETE") == 204
            assert await client.outcome() == "closed"


async def test_a_black_holed_link_does_not_disturb_another(api: Api) -> None:
    with black_hole() as port:
        hole = await LinkUnderTest.create(*api, "hole", port)
        async with linked(api, echo) as link, Client.connected(hole.port) as stuck, asyncio.timeout(SOON_S):
            await stuck.send(b"x")
            async with Client.connected(link.port) as client:
                await client.round_trip()


async def test_a_client_that_leaves_during_the_dial_is_forgotten(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each attempt at a dead replica would cost a socket for two minutes."""
    monkeypatch.setattr(connection, "_DIAL_AFTER_EOF_S", 0.1)
    with black_hole() as port:
        before = _dials(port)
        link = await LinkUnderTest.create(*api, "hole", port)
        for leave in (reset, socket.socket.close):
            async with Client.connected(link.port) as client:
                await client.send(b"hello")
                await until(lambda: _dials(port) == before + 1)
                leave(client.sock)
                await until(lambda: _dials(port) == before)


def _dials(port: int) -> int:
    """Return how many sockets of this machine are dialling that port of loopback (state SYN_SENT)."""
    with open("/proc/net/tcp") as table:
        rows = [row.split() for row in table]
    return sum(row[2] == f"0100007F:{port:04X}" and row[3] == "02" for row in rows)


async def test_what_the_client_sent_during_the_dial_arrives(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client:
        await client.send(b"x" * 300_000)
        received = 0
        while received < 300_000:
            received += len(await client.receive())


# --- ends of connections ------------------------------------------------------------------------------------


async def test_a_half_close_is_passed_on(api: Api) -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = await reader.read()
        writer.write(b"got %d" % len(whole))

    async with linked(api, answer_at_the_end) as link, Client.connected(link.port) as client:
        await client.send(b"x" * 1000)
        client.sock.shutdown(socket.SHUT_WR)
        assert await client.receive() == b"got 1000"
        assert await client.outcome() == "closed"


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_the_end_of_an_upstream_reaches_the_client_as_what_it_was(api: Api, end: str) -> None:
    go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        await writer.drain()
        await go.wait()
        if end == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            writer.transport.abort()

    async with linked(api, serve) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        assert await client.receive() == b"first"
        go.set()
        assert await client.outcome() == ("ECONNRESET" if end == "reset" else "closed")


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_the_end_of_a_client_reaches_the_upstream(api: Api, end: str) -> None:
    """A replica must see that its caller has left, or it generates for nobody."""
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        try:
            seen.set_result("closed" if await reader.read(1) == b"" else "data")
        except ConnectionResetError:
            seen.set_result("reset")

    async with linked(api, serve) as link:
        async with Client.connected(link.port) as client:
            await client.send(b"x")
            if end == "reset":
                reset(client.sock)
        async with asyncio.timeout(SOON_S):
            assert await seen in ("closed", end)


async def test_a_cut_by_limit_data_closes_the_upstream_too(api: Api) -> None:
    ended = asyncio.Event()

    async def stream_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"token ")
                await writer.drain()
                await asyncio.sleep(0.001)
        ended.set()

    async with linked(api, stream_for_ever) as link:
        await link.add("limit_data", bytes=100)
        async with Client.connected(link.port) as client, asyncio.timeout(SOON_S):
            seen = await client.receive_all()
            assert seen.size == 100
            await ended.wait()


async def test_reset_peer_resets_connections_that_were_open_before_it(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        await client.round_trip()
        await link.add("reset_peer", timeout=0)
        await client.send(b"x")
        assert await client.outcome() == "ECONNRESET"


async def test_deleting_a_link_closes_its_listener_and_its_connections(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        await client.round_trip()
        assert await link.call("DELETE") == 204
        assert await client.outcome() == "closed"
        with pytest.raises(ConnectionRefusedError):
            async with Client.connected(link.port):
                pass


# --- toxics on live connections -------------------------------------------------------------------------------


async def test_no_byte_is_lost_or_changed_while_toxics_come_and_go(api: Api) -> None:
    rng = random.Random(11)
    sent = rng.randbytes(400_000)
    kinds: dict[str, dict[str, int]] = {
        "latency": {"latency": 5, "jitter": 5},
        "slicer": {"average_size": 700, "size_variation": 300, "delay": 1},
        "bandwidth": {"rate": 3000},
        "slow_close": {"delay": 5},
        "noop": {},
    }
    async with linked(api, echo) as link, Client.connected(link.port) as client:

        async def write() -> None:
            position = 0
            while position < len(sent):
                size = rng.randint(1, 4000)
                await client.send(sent[position : position + size])
                position += size
                await asyncio.sleep(0.001)
            client.sock.shutdown(socket.SHUT_WR)

        async def meddle() -> None:
            put: list[tuple[str, str]] = []
            while True:
                await asyncio.sleep(rng.uniform(0, 0.01))
                kind, stream = rng.choice(list(kinds)), rng.choice(["upstream", "downstream"])
                if (kind, stream) in put:
                    name = f"/toxics/{kind}_{stream}"
                    if rng.random() < 0.5:
                        assert await link.call("PATCH", name, {"toxicity": rng.choice([0.0, 1.0])}) == 200
                    else:
                        put.remove((kind, stream))
                        assert await link.call("DELETE", name) == 204
                else:
                    put.append((kind, stream))
                    await link.add(kind, stream=stream, **kinds[kind])

        meddling = asyncio.create_task(meddle())
        writing = asyncio.create_task(write())
        async with asyncio.timeout(60):
            seen = await client.receive_all()
            await writing
        meddling.cancel()
        received = b"".join(data for _, data in seen.arrivals)
    assert seen.error is None
    assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()


async def test_a_changed_latency_holds_for_what_already_waits(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client:
        await link.add("latency", latency=60_000)
        await client.send(b"x")
        assert await link.call("PATCH", "/toxics/latency_downstream", {"attributes": {"latency": 0}}) == 200
        async with asyncio.timeout(SOON_S):
            assert await client.receive() == b"x"


async def test_toxicity_0_affects_nobody_and_can_be_raised_on_a_live_connection(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        await link.add("timeout", toxicity=0.0, timeout=1)
        await client.round_trip()
        assert await link.call("PATCH", "/toxics/timeout_downstream", {"toxicity": 1}) == 200
        assert await client.outcome() == "closed"


async def test_a_slicer_without_a_size_leaves_chunks_whole_where_the_go_server_crashes(api: Api) -> None:
    async with linked(api, bulk) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        await link.add("slicer")
        await client.send(b"x")
        assert (await client.receive_all()).size == 300_000


async def test_a_stopped_bandwidth_lets_nothing_through_until_it_is_raised(api: Api) -> None:
    async with linked(api, bulk) as link, Client.connected(link.port) as client, asyncio.timeout(SOON_S):
        await link.add("bandwidth", rate=0)
        await client.send(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(), 0.1)
        assert (
            await link.call("PATCH", "/toxics/bandwidth_downstream", {"attributes": {"rate": 10**6}}) == 200
        )
        assert (await client.receive_all()).size == 300_000


# --- flow control and figures ----------------------------------------------------------------------------------


async def _metrics(api: Api) -> dict[str, float]:
    session, url = api
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found = re.findall(r"^toxiproxy_proxy_(\w+)_bytes_total\{direction=\"(\w+)\".*\} (\S+)$", text, re.M)
    return {f"{what} {direction}": float(value) for what, direction, value in found}


async def test_byte_counters_have_toxiproxys_names_and_move_while_a_connection_is_open(api: Api) -> None:
    async with linked(api, echo) as link, Client.connected(link.port) as client:
        await client.round_trip(b"12345")
        assert await _metrics(api) == {
            f"{what} {direction}": 5.0
            for what in ("received", "sent")
            for direction in ("upstream", "downstream")
        }


@pytest.mark.parametrize("toxic", ["none", "noop", "slicer"])
async def test_a_reader_that_stops_stops_the_upstream(api: Api, toxic: str) -> None:
    """Memory stays bounded: what nobody reads is not taken in for ever."""

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    async with linked(api, flood) as link:
        if toxic == "noop":
            await link.add("noop")
        elif toxic == "slicer":
            await link.add("slicer", average_size=50_000, size_variation=1_000)
        async with Client.connected(link.port) as client:
            await client.receive(1)
            before, now = -1.0, 0.0
            async with asyncio.timeout(30):
                while before != now:
                    await asyncio.sleep(0.3)
                    before, now = now, (await _metrics(api))["received downstream"]
            assert now < 40e6
            for _ in range(500):
                assert await client.receive(1 << 20)
            assert (await _metrics(api))["received downstream"] > now


# --- the process ---------------------------------------------------------------------------------------------


def test_a_taken_port_ends_with_a_message_and_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "cluster.linkproxy", "--port", port],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert ended.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_it_cleanly_with_connections_open() -> None:
    port, link = free_ports(2)
    with subprocess.Popen(
        [sys.executable, "-m", "cluster.linkproxy", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert f":{port}" in process.stdout.readline()
        asyncio.run(_make_link(port, link))
        with socket.create_connection(("127.0.0.1", link)), socket.create_connection(("127.0.0.1", port)):
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert process.stderr.read() == ""


async def _make_link(port: int, link: int) -> None:
    body = {"name": "a", "listen": f"127.0.0.1:{link}", "upstream": f"127.0.0.1:{port}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/proxies", json=body) as answer,
    ):
        assert answer.status == 201
