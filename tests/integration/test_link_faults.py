"""The chaos side's client against the embedded link proxy (or the Toxiproxy that BROWNOUT_TOXIPROXY_URL names)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from chaos import toxics
from chaos.links import (
    LinkFaultError,
    LinkFaults,
    LinkProxyUnreachableError,
    ToxicExistsError,
    UnknownLinkError,
)
from chaos.toxics import InvalidToxicError, Toxic
from tests.contract.toxiproxy import LinkUnderTest, under_test
from tests.fakes.tcp import Client, echo, tcp_server
from tests.ports import free_ports


@pytest.fixture
async def link() -> AsyncIterator[tuple[LinkFaults, LinkUnderTest]]:
    async with under_test() as url, aiohttp.ClientSession() as session, tcp_server(echo) as port:
        made = await LinkUnderTest.create(session, url, "tool", port)
        async with LinkFaults(url) as faults:
            yield faults, made


Stand = tuple[LinkFaults, LinkUnderTest]


async def test_a_toxic_is_added_verified_and_removed(link: Stand) -> None:
    faults, made = link
    toxic = toxics.latency(0.2, name="slow")
    assert not await faults.verify("tool", toxic)
    await faults.add("tool", toxic)
    assert await faults.verify("tool", toxic)
    assert [found.name for found in await faults.toxics("tool")] == ["slow"]
    async with Client.connected(made.port) as client:
        assert await client.round_trip() >= 0.2
    assert await faults.remove("tool", "slow")
    assert not await faults.remove("tool", "slow"), "safe twice"
    assert not await faults.verify("tool", toxic)
    async with Client.connected(made.port) as client:
        assert await client.round_trip() < 0.2


async def test_another_value_than_asked_for_does_not_verify(link: Stand) -> None:
    faults, made = link
    await faults.add("tool", toxics.latency(0.2))
    assert not await faults.verify("tool", toxics.latency(0.3))
    assert await made.call("PATCH", body={"enabled": False}) == 200
    assert not await faults.verify("tool", toxics.latency(0.2)), "a link that is cut is not a slow link"


async def test_a_misspelt_attribute_never_reaches_the_server(link: Stand) -> None:
    faults, _ = link
    with pytest.raises(InvalidToxicError):
        await faults.add("tool", Toxic("latency", {"latencyy": 200}))
    assert await faults.toxics("tool") == ()


async def test_errors_say_what_is_there_and_what_is_not(link: Stand) -> None:
    faults, _ = link
    toxic = toxics.latency(0.1)
    with pytest.raises(UnknownLinkError, match="'replica-9'"):
        await faults.add("replica-9", toxic)
    with pytest.raises(UnknownLinkError):
        await faults.set_enabled("replica-9", False)
    assert not await faults.verify("replica-9", toxic)
    assert not await faults.remove("replica-9", toxic.name)
    await faults.add("tool", toxic)
    with pytest.raises(ToxicExistsError):
        await faults.add("tool", toxic)


async def test_a_link_is_cut_and_mended(link: Stand) -> None:
    faults, made = link
    for _ in range(2):
        await faults.set_enabled("tool", False)
    assert await faults.links() == {"tool": False}
    with pytest.raises(ConnectionRefusedError):
        async with Client.connected(made.port):
            pass
    for _ in range(2):
        await faults.set_enabled("tool", True)
    assert await faults.links() == {"tool": True}
    async with Client.connected(made.port) as client:
        await client.round_trip()


async def test_a_link_proxy_that_is_not_there_is_a_typed_error() -> None:
    (port,) = free_ports(1)
    async with LinkFaults(f"http://127.0.0.1:{port}") as faults:
        with pytest.raises(LinkProxyUnreachableError, match="is the link proxy running"):
            await faults.links()


async def test_a_call_that_hangs_ends_with_its_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with tcp_server(silent) as port, LinkFaults(f"http://127.0.0.1:{port}", timeout_s=0.1) as faults:
        with pytest.raises(LinkProxyUnreachableError, match=r"no answer within 0\.1 s"):
            await faults.remove("tool", "x")


async def test_a_server_that_takes_something_else_is_found_out_and_the_toxic_taken_off() -> None:
    removed: list[str] = []

    async def take(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(body | {"attributes": {"latency": 0, "jitter": 0}})

    async def remove(request: web.Request) -> web.Response:
        removed.append(request.match_info["toxic"])
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/proxies/tool/toxics", take)
    app.router.add_delete("/proxies/tool/toxics/{toxic}", remove)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with LinkFaults(f"http://127.0.0.1:{runner.addresses[0][1]}") as faults:
            with pytest.raises(LinkFaultError, match="asked for"):
                await faults.add("tool", toxics.latency(0.2))
    finally:
        await runner.cleanup()
    assert removed == ["latency_downstream"]


async def test_used_outside_its_block_it_says_so() -> None:
    with pytest.raises(LinkFaultError, match="async with"):
        await LinkFaults("http://127.0.0.1:1").links()
