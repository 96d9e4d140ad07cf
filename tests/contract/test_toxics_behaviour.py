"""What a TCP client measures under each toxic, against what was measured on the real Toxiproxy.

Durations count as equal within 50 ms or 15 %. A busy machine only ever makes them longer, so that a measurement
is made again, up to five times, before it counts as different.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.toxiproxy import LinkUnderTest, under_test
from tests.fakes.tcp import Client, Received, bulk, echo, tcp_server

Seen = dict[str, Any]
_TRIES = 5


class Bench:
    """A link to an echo server and one to a server that sends 300,000 bytes, fresh for each measurement."""

    def __init__(self, echo: LinkUnderTest, bulk: LinkUnderTest, refused: LinkUnderTest) -> None:
        self.echo, self.bulk, self.refused = echo, bulk, refused


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with (
        under_test() as url,
        aiohttp.ClientSession() as session,
        tcp_server(echo) as echo_port,
        tcp_server(bulk) as bulk_port,
    ):
        async with tcp_server(echo) as closed_port:
            pass
        ports = {"echo": echo_port, "bulk": bulk_port, "refused": closed_port}
        links = {name: await LinkUnderTest.create(session, url, name, port) for name, port in ports.items()}
        yield Bench(**links)


async def _round_trip(link: LinkUnderTest) -> Seen:
    async with Client.connected(link.port) as client:
        return {"seconds": await client.round_trip()}


async def _bulk(link: LinkUnderTest, ask: bytes = b"x") -> Seen:
    async with Client.connected(link.port) as client:
        await client.send(ask)
        seen: Received = await client.receive_all()
    return {
        "bytes": seen.size,
        "seconds": seen.seconds,
        "first_byte_seconds": seen.first_byte_seconds,
        "error": seen.error,
    }


async def no_toxic(on: Bench) -> Seen:
    return await _round_trip(on.echo)


async def connect_under_latency(on: Bench) -> Seen:
    await on.echo.add("latency", latency=300)
    started = asyncio.get_running_loop().time()
    async with Client.connected(on.echo.port):
        return {"seconds": asyncio.get_running_loop().time() - started}


async def latency_new_connection(on: Bench) -> Seen:
    await on.echo.add("latency", latency=300)
    return await _round_trip(on.echo)


async def latency_keeps_spacing(on: Bench) -> Seen:
    await on.echo.add("latency", latency=300)
    async with Client.connected(on.echo.port) as client:
        started = asyncio.get_running_loop().time()
        await client.send(b"a")
        await asyncio.sleep(0.1)
        await client.send(b"b")
        arrivals = []
        for _ in range(2):
            text = (await client.receive(1)).decode()
            arrivals.append([asyncio.get_running_loop().time() - started, text])
        return {"arrivals": arrivals}


async def latency_removed(on: Bench) -> Seen:
    name = await on.echo.add("latency", latency=300)
    async with Client.connected(on.echo.port) as client:
        await client.round_trip()
        await on.echo.remove(name)
        return {"seconds": await client.round_trip()}


async def latency_added_live(on: Bench) -> Seen:
    async with Client.connected(on.echo.port) as client:
        await client.round_trip()
        await on.echo.add("latency", latency=300)
        return {"seconds": await client.round_trip()}


async def latency_both_ways(on: Bench) -> Seen:
    await on.echo.add("latency", latency=200)
    await on.echo.add("latency", stream="upstream", latency=200)
    return await _round_trip(on.echo)


async def plain_bulk(on: Bench) -> Seen:
    return await _bulk(on.bulk)


def bulk_under(kind: str, **attributes: Any) -> Callable[[Bench], Awaitable[Seen]]:
    async def measure(on: Bench) -> Seen:
        await on.bulk.add(kind, **attributes)
        return await _bulk(on.bulk)

    return measure


async def timeout_before_echo(on: Bench) -> Seen:
    await on.echo.add("timeout", timeout=400)
    return await _bulk(on.echo)


async def timeout_holds(on: Bench) -> Seen:
    await on.echo.add("timeout", timeout=0)
    async with Client.connected(on.echo.port) as client:
        await client.send(b"x")
        with contextlib.suppress(TimeoutError):
            return {"outcome": await asyncio.wait_for(client.outcome(), 1.5)}
        return {"outcome": "still open, no data after 1.5 s"}


async def timeout_removed(on: Bench) -> Seen:
    name = await on.echo.add("timeout", timeout=0)
    async with Client.connected(on.echo.port) as client:
        await client.send(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.outcome(), 0.05)
        started = asyncio.get_running_loop().time()
        await on.echo.remove(name)
        return {"outcome": await client.outcome(), "seconds": asyncio.get_running_loop().time() - started}


async def disabled_live(on: Bench) -> Seen:
    async with Client.connected(on.echo.port) as client:
        await client.round_trip()
        await on.echo.enable(False)
        return {"outcome": await client.outcome()}


async def disabled_new(on: Bench) -> Seen:
    await on.echo.enable(False)
    try:
        async with Client.connected(on.echo.port) as client:
            return {"outcome": await client.outcome()}
    except ConnectionRefusedError:
        return {"outcome": "ECONNREFUSED"}


async def upstream_refuses(on: Bench) -> Seen:
    async with Client.connected(on.refused.port) as client:
        return {"outcome": await client.outcome()}


async def toxicity_over_connections(on: Bench) -> Seen:
    await on.echo.add("timeout", toxicity=0.5, timeout=20)

    async def affected() -> bool:
        async with Client.connected(on.echo.port) as client:
            try:
                await client.round_trip()
            except ConnectionError:
                return True
            return False

    return {"count": sum(await asyncio.gather(*(affected() for _ in range(200))))}


async def toxicity_within_connection(on: Bench) -> Seen:
    await on.echo.add("latency", toxicity=0.5, latency=60)
    for _ in range(6):
        async with Client.connected(on.echo.port) as client:
            slow = [await client.round_trip() >= 0.055 for _ in range(10)]
            if len(set(slow)) != 1:
                return {"same": False}
    return {"same": True}


MEASURES: dict[str, Callable[[Bench], Awaitable[Seen]]] = {
    "no toxic: echo round trip": no_toxic,
    "latency 300 ms: connect is not delayed": connect_under_latency,
    "latency 300 ms downstream: round trip on a new connection": latency_new_connection,
    "latency 300 ms: two writes 100 ms apart keep their spacing (arrival time of each)": latency_keeps_spacing,
    "latency removed: round trip on the same connection": latency_removed,
    "latency added to a live connection: round trip": latency_added_live,
    "latency 200 ms on both streams: round trip": latency_both_ways,
    "no toxic: 300000 bytes then close": plain_bulk,
    "bandwidth 100 KB/s: 300000 bytes then close": bulk_under("bandwidth", rate=100),
    "slow_close 500 ms: 300000 bytes then close": bulk_under("slow_close", delay=500),
    "limit_data 1000: bytes before close": bulk_under("limit_data", bytes=1000),
    "slicer 1000±100, 100 us: 300000 bytes": bulk_under(
        "slicer", average_size=1000, size_variation=100, delay=100
    ),
    "timeout 400 ms before an echo: closes without data": timeout_before_echo,
    "timeout 400 ms, upstream closes first: closes at once, data dropped": bulk_under("timeout", timeout=400),
    "reset_peer 0 ms": bulk_under("reset_peer", timeout=0),
    "reset_peer 300 ms": bulk_under("reset_peer", timeout=300),
    "timeout 0: holds the connection": timeout_holds,
    "timeout 0 removed: what happens to the held connection": timeout_removed,
    "proxy disabled: live connection": disabled_live,
    "proxy disabled: new connection": disabled_new,
    "upstream refuses: client sees": upstream_refuses,
    "toxicity 0.5 over 200 connections: affected": toxicity_over_connections,
    "toxicity 0.5: ten round trips on one connection all the same": toxicity_within_connection,
}


def _close(seen: Any, recorded: Any) -> bool:
    """Compare durations within 50 ms or 15 %, and everything else exactly."""
    if isinstance(recorded, list):
        return len(seen) == len(recorded) and all(map(_close, seen, recorded))
    if isinstance(recorded, float):
        return isinstance(seen, float) and abs(seen - recorded) <= max(0.05, 0.15 * recorded)
    return bool(seen == recorded)


def _differences(seen: Seen, recorded: Seen) -> list[str]:
    found = []
    for key, value in seen.items():
        same = 60 <= value <= 140 if key == "count" else _close(value, recorded[key])
        if not same:
            found.append(f"{key}: recorded {recorded[key]}, measured {value}")
    return found


def _recording(shared: Path) -> dict[str, Seen]:
    path = shared / "toxiproxy" / "transcript.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent (BROWNOUT_SHARED names another place)")
    return {entry["name"]: entry for entry in json.loads(path.read_text())["behaviour"]}


def test_every_recorded_behaviour_is_measured(shared: Path) -> None:
    assert set(_recording(shared)) == set(MEASURES)


@pytest.mark.parametrize("name", MEASURES)
async def test_behaviour_is_as_recorded(name: str, shared: Path) -> None:
    recorded = _recording(shared)[name]
    differing: list[str] = []
    for _ in range(_TRIES):
        async with bench() as on:
            differing = _differences(await MEASURES[name](on), recorded)
        if not differing:
            return
    raise AssertionError(f"{name}: {'; '.join(differing)}")
