"""The links service with the embedded link proxy, over real HTTP and TCP; Ray's dashboard is a stand-in."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from cluster.linkproxy.server import serving as serving_link_proxy
from cluster.links.server import serving as serving_links
from cluster.public import REPLICA_LINK_PORTS
from cluster.settings import Settings
from tests.fakes.serve_rest import FakeDashboard, FakeReplica, answer, recorded
from tests.fakes.stuck_toxiproxy import StuckToxiproxy
from tests.fakes.tcp import Client, black_hole, echo, tcp_server, until
from tests.ports import free_ports

WITHIN_S = 15.0
Links = dict[str, dict[str, Any]]


def _port_range(count: int) -> int:
    """Return the first of ``count`` ports that are free together just now."""
    for first in range(23000, 29000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free range of ports")


@dataclass
class Stand:
    """One links service and what is around it."""

    settings: Settings
    dashboard: FakeDashboard
    session: aiohttp.ClientSession
    token_file: Path
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def serve(self, *replicas: FakeReplica) -> None:
        self.dashboard.body = answer(*replicas)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.settings.links_url + path) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def wait_links(self, condition: Callable[[Links], bool]) -> Links:
        """Follow the list by long poll, as the gateway does, until the condition holds."""
        version = -1
        async with asyncio.timeout(WITHIN_S):
            while True:
                status, listed = await self.get(f"/links?after={version}&wait_s=1")
                if status == 503:
                    await asyncio.sleep(0.02)
                    continue
                links = {link["name"]: link for link in listed["links"]}
                if condition(links):
                    return links
                version = listed["version"]

    async def wait_health(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(WITHIN_S):
            while True:
                _, health = await self.get("/healthz")
                if condition(health):
                    return dict(health)
                await asyncio.sleep(0.02)

    def links_service(self) -> contextlib.AbstractAsyncContextManager[Any]:
        return serving_links(self.settings, self.token_file)

    def link_proxy(self) -> contextlib.AbstractAsyncContextManager[str]:
        return serving_link_proxy("127.0.0.1", self.settings.port_toxiproxy)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A dashboard that answers; link proxy and service are started by the test."""
    names = ("port_client", "port_gateway", "port_links", "port_tool_link", "port_toxiproxy")
    ports: dict[str, Any] = dict(zip(names, free_ports(len(names)), strict=True))
    async with FakeDashboard().serving() as dashboard, aiohttp.ClientSession() as session:
        settings = Settings(
            port_ray_dashboard=dashboard.port, port_replica_links=_port_range(REPLICA_LINK_PORTS), **ports
        )
        yield Stand(settings, dashboard, session, tmp_path / "auth_token")


def replicas(links: Links) -> Links:
    return {name: link for name, link in links.items() if link["kind"] == "replica"}


def has(count: int) -> Callable[[Links], bool]:
    return lambda links: len(replicas(links)) == count


def port_of(link: dict[str, Any]) -> int:
    return int(link["listen"].rpartition(":")[2])


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Give a port on which nothing listens and that nobody else gets meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


# --- the list -----------------------------------------------------------------------------------------------


async def test_traffic_flows_through_the_listed_address_of_each_kind(stand: Stand) -> None:
    async with tcp_server(echo) as one, tcp_server(echo) as tool, stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", one, ip="192.0.2.9"), FakeReplica("tttttttt", tool, app="tool"))
        links = await stand.wait_links(lambda links: len(links) == 3)
        assert set(links) == {"client", "tool", "replica-0.aaaaa"}
        link = links["replica-0.aaaaa"]
        assert link["label"] == "replica-0"
        assert link["replica_id"] == "aaaaaaaa"
        assert link["upstream"] == f"127.0.0.1:{one}", "on loopback the address that Ray names is not used"
        assert port_of(links["tool"]) == stand.settings.port_tool_link
        assert port_of(links["client"]) == stand.settings.port_client
        assert links["client"]["upstream"] == f"127.0.0.1:{stand.settings.port_gateway}"
        for name in ("tool", "replica-0.aaaaa"):
            async with Client.connected(port_of(links[name])) as client:
                await client.round_trip()


async def test_a_new_replica_is_listed_within_a_second(stand: Stand) -> None:
    """Of three, so that a pause of a busy machine does not count as the service's."""
    loop = asyncio.get_running_loop()
    async with tcp_server(echo) as port, stand.link_proxy(), stand.links_service():
        known = [FakeReplica("00000000", port)]
        stand.serve(*known)
        await stand.wait_links(has(1))
        took = []
        for replica_id in ("11111111", "22222222", "33333333"):
            known.append(FakeReplica(replica_id, port))
            started = loop.time()
            stand.serve(*known)
            await stand.wait_links(has(len(known)))
            took.append(loop.time() - started)
    assert min(took) < 1.0


async def test_a_replacement_gets_a_new_link_and_the_old_one_is_closed(stand: Stand) -> None:
    async with tcp_server(echo) as one, tcp_server(echo) as two, stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", one))
        old = (await stand.wait_links(has(1)))["replica-0.aaaaa"]
        async with Client.connected(port_of(old)) as client:
            await client.round_trip()
            stand.serve(FakeReplica("bbbbbbbb", two))
            links = await stand.wait_links(lambda links: "replica-0.bbbbb" in links)
            assert set(replicas(links)) == {"replica-0.bbbbb"}
            assert links["replica-0.bbbbb"]["listen"] != old["listen"]
            async with asyncio.timeout(WITHIN_S):
                assert await client.outcome() == "closed"
        await stand.wait_health(lambda health: health["pending_removals"] == 0)
        with pytest.raises(ConnectionRefusedError):
            async with Client.connected(port_of(old)):
                pass


async def test_streams_of_a_draining_replica_go_on(stand: Stand) -> None:
    async with tcp_server(echo) as port, stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", port))
        link = (await stand.wait_links(has(1)))["replica-0.aaaaa"]
        async with Client.connected(port_of(link)) as client:
            await client.round_trip()
            stand.serve(FakeReplica("aaaaaaaa", None, state="STOPPING"))
            await stand.wait_links(has(0))
            await client.round_trip()
            stand.serve()
            async with asyncio.timeout(WITHIN_S):
                assert await client.outcome() == "closed"


async def test_a_black_holed_replica_does_not_hold_up_its_replacement(stand: Stand) -> None:
    async with tcp_server(echo) as port, stand.link_proxy(), stand.links_service():
        with black_hole() as hole:
            stand.serve(FakeReplica("aaaaaaaa", hole))
            old = (await stand.wait_links(has(1)))["replica-0.aaaaa"]
            async with Client.connected(port_of(old)) as stuck:
                await stuck.send(b"anybody there?")
                stand.serve(FakeReplica("bbbbbbbb", port))
                new = (await stand.wait_links(lambda links: "replica-0.bbbbb" in links))["replica-0.bbbbb"]
                async with Client.connected(port_of(new)) as client:
                    await client.round_trip()
                await stand.wait_health(lambda health: health["pending_removals"] == 0)


async def test_with_the_go_servers_locks_a_stuck_removal_does_not_hold_up_a_replacement(stand: Stand) -> None:
    """Deleting a stuck proxy would lock all others out; it is disabled first, which locks only itself."""
    async with StuckToxiproxy().serving() as toxiproxy:
        stand.settings = stand.settings.model_copy(update={"port_toxiproxy": toxiproxy.port})
        async with stand.links_service():
            stand.serve(FakeReplica("aaaaaaaa", 30000))
            await stand.wait_links(has(1))
            toxiproxy.stuck.add("replica-0.aaaaa")
            stand.serve()
            await stand.wait_links(has(0))
            await stand.wait_health(lambda health: toxiproxy.stops_tried > 0)
            stand.serve(FakeReplica("bbbbbbbb", 30001))
            await stand.wait_links(has(1))
            assert "replica-0.aaaaa" in toxiproxy.proxies
            toxiproxy.stuck.clear()
            await stand.wait_health(lambda health: health["pending_removals"] == 0)
            assert set(toxiproxy.proxies) == {"client", "replica-0.bbbbb"}


async def test_the_tool_link_follows_a_moved_tool_on_the_same_port(stand: Stand) -> None:
    async with tcp_server(echo) as one, tcp_server(echo) as two, stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("tttttttt", one, app="tool"))
        before = (await stand.wait_links(lambda links: "tool" in links))["tool"]
        stand.serve(FakeReplica("uuuuuuuu", two, app="tool"))
        upstream = f"127.0.0.1:{two}"
        links = await stand.wait_links(lambda links: links.get("tool", {}).get("upstream") == upstream)
        assert links["tool"]["listen"] == before["listen"]
        async with Client.connected(port_of(links["tool"])) as client:
            await client.round_trip()


# --- the long poll --------------------------------------------------------------------------------------------


async def test_a_long_poll_ends_with_the_change_or_with_its_wait(stand: Stand) -> None:
    async with stand.link_proxy(), stand.links_service():
        stand.serve()
        await stand.wait_links(lambda links: "client" in links)
        _, listed = await stand.get("/links")
        version = listed["version"]
        poll = asyncio.create_task(stand.get(f"/links?after={version}&wait_s=30"))
        _, same = await stand.get(f"/links?after={version}&wait_s=0.05")
        assert same["version"] == version
        assert not poll.done()
        stand.serve(FakeReplica("aaaaaaaa", 30000))
        async with asyncio.timeout(WITHIN_S):
            _, changed = await poll
        assert changed["version"] > version
        for other in (0, version + 10**6):
            _, listed = await stand.get(f"/links?after={other}&wait_s=30")
            assert listed["version"] == changed["version"], "a version of another run is answered at once"


@pytest.mark.parametrize("query", ["after=x", "after=1&wait_s=soon", "after=nan", "after=inf"])
async def test_a_number_that_is_none_is_refused_by_name(stand: Stand, query: str) -> None:
    async with stand.link_proxy(), stand.links_service():
        status, body = await stand.get(f"/links?{query}")
    assert status == 400
    assert "give a number" in body["error"]


async def test_before_the_first_answer_there_is_no_list_and_not_an_empty_one(stand: Stand) -> None:
    stand.dashboard.status = 500
    async with stand.link_proxy(), stand.links_service():
        await stand.wait_health(lambda health: health["links"] == 1)
        status, body = await stand.get("/links")
        assert status == 503
        assert "status 500" in body["error"]
        stand.dashboard.status = 200
        await stand.wait_links(lambda links: set(links) == {"client"})


# --- what can go away -------------------------------------------------------------------------------------------


async def test_without_the_dashboard_the_last_list_stands_and_health_says_so(stand: Stand) -> None:
    async with tcp_server(echo) as port, stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", port))
        links = await stand.wait_links(has(1))
        for status, body in ((503, stand.dashboard.body), (200, b"not json"), (200, recorded("no_serve"))):
            stand.dashboard.status, stand.dashboard.body = status, body
            health = await stand.wait_health(lambda health: health["status"] == "degraded")
            assert health["problems"]
            assert replicas(
                {link["name"]: link for link in (await stand.get("/links"))[1]["links"]}
            ) == replicas(links)
            stand.dashboard.status = 200
            stand.serve(FakeReplica("aaaaaaaa", port))
            await stand.wait_health(lambda health: health["status"] == "ok")


async def test_a_link_proxy_that_restarts_gets_its_links_again(stand: Stand) -> None:
    async with tcp_server(echo) as port, contextlib.AsyncExitStack() as stack:
        async with stand.link_proxy():
            await stack.enter_async_context(stand.links_service())
            stand.serve(FakeReplica("aaaaaaaa", port))
            before = await stand.wait_links(has(1))
        await stand.wait_health(lambda health: health["status"] == "degraded")
        async with stand.link_proxy():
            await stand.wait_health(lambda health: health["status"] == "ok")
            place = port_of(before["replica-0.aaaaa"])
            async with asyncio.timeout(WITHIN_S):
                while True:
                    try:
                        async with Client.connected(place) as client:
                            await client.round_trip()
                        break
                    except ConnectionError:
                        await asyncio.sleep(0.02)
            listed = (await stand.get("/links"))[1]["links"]
            assert {link["name"]: link for link in listed} == before


async def test_a_restarted_service_takes_the_links_over_without_cutting_a_stream(stand: Stand) -> None:
    async with (
        tcp_server(echo) as port,
        stand.link_proxy() as proxy_url,
        contextlib.AsyncExitStack() as stack,
    ):
        stale = {"name": "replica-7.zzzzz", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
        stand.serve(FakeReplica("aaaaaaaa", port))
        async with stand.links_service():
            before = await stand.wait_links(has(1))
            version = (await stand.get("/links"))[1]["version"]
            link = before["replica-0.aaaaa"]
            client = await stack.enter_async_context(Client.connected(port_of(link)))
            await client.round_trip()
        async with stand.session.post(f"{proxy_url}/proxies", json=stale) as response:
            assert response.status == 201
        async with stand.links_service():
            after = await stand.wait_links(has(1))
            assert after["replica-0.aaaaa"] | {"since": 0} == link | {"since": 0}
            assert (await stand.get("/links"))[1]["version"] > version
            await client.round_trip()
            await stand.wait_health(lambda health: health["pending_removals"] == 0)
            async with stand.session.get(f"{proxy_url}/proxies") as response:
                assert set(await response.json(content_type=None)) == {"client", "replica-0.aaaaa"}


async def test_a_port_that_somebody_else_holds_is_passed_over(stand: Stand) -> None:
    first = stand.settings.port_replica_links
    with socket.create_server(("127.0.0.1", first)):
        async with tcp_server(echo) as port, stand.link_proxy(), stand.links_service():
            stand.serve(FakeReplica("aaaaaaaa", port))
            links = await stand.wait_links(has(1))
            assert port_of(links["replica-0.aaaaa"]) == first + 1


# --- Ray's token -------------------------------------------------------------------------------------------------


async def test_rays_token_is_sent_as_a_bearer_as_soon_as_it_is_there(stand: Stand) -> None:
    stand.dashboard.status = 401
    async with stand.link_proxy(), stand.links_service():
        health = await stand.wait_health(lambda health: "401" in str(health["problems"]))
        assert str(stand.token_file) in str(health["problems"])
        assert "Authorization" not in stand.dashboard.headers
        stand.token_file.write_text("s3cret\n")
        await until(lambda: stand.dashboard.headers.get("Authorization") == "Bearer s3cret")


# --- metrics and discovery -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def replica_with_metrics(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_metrics_of_a_replica_come_past_its_link(stand: Stand) -> None:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 3\n")

    async with replica_with_metrics(metrics) as port, stand.link_proxy() as proxy_url, stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", port))
        await stand.wait_links(has(1))
        cut = {"enabled": False}
        async with stand.session.patch(f"{proxy_url}/proxies/replica-0.aaaaa", json=cut) as response:
            assert response.status == 200
        for name in ("replica-0.aaaaa", "replica-0"):
            assert await stand.get(f"/replicas/{name}/metrics") == (200, "vllm:num_requests_running 3\n")
        status, body = await stand.get("/replicas/replica-9/metrics")
        assert status == 404
        assert "replica-0.aaaaa" in body["error"]


async def test_a_replica_that_gives_no_metrics_is_a_502_or_a_504(stand: Stand) -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async def fail(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with (
        replica_with_metrics(hang) as hanging,
        replica_with_metrics(fail) as failing,
        stand.link_proxy(),
        stand.links_service(),
    ):
        with closed_port() as closed, black_hole() as hole:
            ports = {"hang": hanging, "fail": failing, "gone": closed, "hole": hole}
            stand.serve(*(FakeReplica(name * 2, port) for name, port in ports.items()))
            links = replicas(await stand.wait_links(has(4)))
            answers = {
                link["replica_id"][:4]: (await stand.get(f"/replicas/{name}/metrics"))[0]
                for name, link in links.items()
            }
    assert answers == {"hang": 504, "fail": 502, "gone": 502, "hole": 504}


async def test_discovery_lists_the_replicas_themselves(stand: Stand) -> None:
    async with stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", 30000), FakeReplica("tttttttt", 30001, app="tool"))
        await stand.wait_links(has(1))
        assert await stand.get("/sd") == (
            200,
            [
                {
                    "targets": ["127.0.0.1:30000"],
                    "labels": {
                        "__metrics_path__": "/metrics",
                        "replica": "replica-0",
                        "link": "replica-0.aaaaa",
                    },
                }
            ],
        )


async def test_own_metrics_count_links(stand: Stand) -> None:
    async with stand.link_proxy(), stand.links_service():
        stand.serve(FakeReplica("aaaaaaaa", 30000))
        await stand.wait_links(has(1))
        stand.serve()
        await stand.wait_links(has(0))
        await stand.wait_health(lambda health: health["pending_removals"] == 0)
        _, text = await stand.get("/metrics")
    for line in (
        'brownout_links_created_total{kind="replica"} 1.0',
        'brownout_links_removed_total{kind="replica"} 1.0',
        'brownout_links{kind="client"} 1.0',
        'brownout_links{kind="replica"} 0.0',
        "brownout_links_pending_removals 0.0",
    ):
        assert line in text.splitlines()


# --- the process -------------------------------------------------------------------------------------------------


def _environment(**settings: object) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin"} | {
        f"BROWNOUT_{name.upper()}": str(value) for name, value in settings.items()
    }


def test_a_taken_port_ends_with_a_message_and_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "cluster.links"],
            env=_environment(port_links=port),
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert ended.returncode == 3
    assert "BROWNOUT_PORT_LINKS" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bad_setting_ends_with_its_name_and_exit_code_4() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "cluster.links"],
        env=_environment(port_links="many"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 4
    assert "BROWNOUT_PORT_LINKS" in ended.stderr


def test_sigterm_ends_it_at_once_with_a_long_poll_open_and_nothing_else_running() -> None:
    port, other, dashboard = free_ports(3)
    with subprocess.Popen(
        [sys.executable, "-m", "cluster.links"],
        env=_environment(port_links=port, port_toxiproxy=other, port_ray_dashboard=dashboard),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert str(port) in process.stdout.readline()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as http_client:
            http_client.request("GET", "/healthz")
            version = json.loads(http_client.getresponse().read())["version"]
            http_client.request("GET", f"/links?after={version}&wait_s=30")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
