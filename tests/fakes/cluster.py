"""A cluster in one process: the HTTP interfaces of gateway, links service and link proxy over modelled replicas.

It is there to test what breaks and measures a cluster, not to be one: a replica is a name that can die. Calls take
milliseconds, a killed replica ends its calls at once and is replaced after ``restart_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from chaos.substrate import (
    Ended,
    Endpoints,
    GatewayHandle,
    NotRunningError,
    ReplicaHandle,
    StorePlace,
    SubstrateError,
)
from cluster.public import LINK_STORE, REPLICA_LABEL_PREFIX
from cluster.tool.ledger import Transfer
from tests.fakes.tool_side import ToolSide


@dataclass(eq=False)
class FakeReplica:
    """One incarnation of a replica."""

    link: str
    died: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while its engine is frozen."""

    def __post_init__(self) -> None:
        self.thawed.set()

    @property
    def label(self) -> str:
        return self.link.split(".")[0]


@dataclass(eq=False)
class FakeCluster:
    """Everything that the chaos package talks to. Times in seconds."""

    replicas_wanted: int = 3
    slots: int = 4
    first_token_s: float = 0.02
    token_s: float = 0.004
    detect_s: float = 0.03
    restart_s: float = 0.4
    serve_restarts: bool = True
    """Whether a lost replica comes back by itself (as in ``local``) or only after a restore (as in ``compose``)."""
    tool_deadline_s: float = 0.1
    slow_tool: bool = True
    """Whether a toxic on link ``tool`` is felt."""
    holds: bool = True
    """Whether a wait for a condition may succeed."""
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.listed: list[FakeReplica] = []
        self.profile: dict[str, Any] = {"profile": "resilient", "without": []}
        self.profiles_set: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.attempts: dict[tuple[str, int], dict[str, Any]] = {}
        self.toxics: dict[str, list[dict[str, Any]]] = {"client": [], "tool": [], "store": []}
        self.cut: set[str] = set()
        """Links that are disabled."""
        self.tool = ToolSide()
        self.revision = "r1"
        self.tenants = Path("/nonexistent")
        """The tenants file, once a key in it was revoked."""
        self.gateway = 1
        """Number of the gateway's process; 0 while it is dead."""
        self.gateways = 1
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.calls = 0
        self.ended = 0
        self.upstreams: dict[str, str] = {}
        """Other upstreams than the cluster's own address, by link."""
        self.url = ""
        self.tool_listen = ""
        self.doors: list[str] = []
        """Where each slot's replica is reached over its own link, as host:port."""
        self._incarnation = itertools.count(1)
        self._turn = itertools.count()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        for slot in range(self.replicas_wanted):
            self._start(slot)

    # --- replicas ---------------------------------------------------------------------------------------

    def _start(self, slot: int) -> None:
        replica = FakeReplica(f"{REPLICA_LABEL_PREFIX}{slot}.i{next(self._incarnation)}")
        self.listed.append(replica)
        self.toxics[replica.link] = []
        self._event("upstream_added", replica=replica.link)

    def replica(self, link: str) -> FakeReplica | None:
        return next((r for r in self.listed if link in (r.link, r.label)), None)

    def kill(self, link: str) -> None:
        replica = self.replica(link)
        assert replica is not None
        replica.died.set()
        self._later(self._after_death(replica))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after_death(self, replica: FakeReplica) -> None:
        await asyncio.sleep(self.detect_s)
        self.listed.remove(replica)
        self.toxics.pop(replica.link, None)
        self._event("upstream_removed", replica=replica.link)
        if self.serve_restarts:
            await asyncio.sleep(self.restart_s)
            self._start(int(replica.label.removeprefix(REPLICA_LABEL_PREFIX)))

    def restore(self, label: str) -> None:
        if not self.serve_restarts and self.replica(label) is None:
            self._start(int(label.removeprefix(REPLICA_LABEL_PREFIX)))

    def _event(self, event: str, **detail: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "at": time.time(), "event": event, **detail})

    def kill_gateway(self) -> None:
        """Its events and its profile are gone with it."""
        self.gateway = 0
        self.events.clear()

    def start_gateway(self) -> None:
        self.gateways += 1
        self.gateway = self.gateways
        self.profile = {"profile": "resilient", "without": []}

    @web.middleware
    async def _while_it_lives(self, request: web.Request, handler: Any) -> Any:
        """Cut the connection of whoever asks a gateway that is dead; links service and link proxy live on."""
        apart = request.path.startswith(("/links", "/replicas", "/proxies"))
        if not self.gateway and not apart and request.transport is not None:
            request.transport.close()
        return await handler(request)

    # --- the gateway ------------------------------------------------------------------------------------

    def _choose(self, tried: list[FakeReplica]) -> FakeReplica | None:
        naive = self.profile["profile"] == "naive"
        candidates = [
            r for r in self.listed if naive or (r not in tried and not r.died.is_set() and r.thawed.is_set())
        ]
        if not candidates:
            return None
        if naive:
            return candidates[next(self._turn) % len(candidates)]
        turn = next(self._turn)
        return min(candidates, key=lambda r: (r.running, (self.listed.index(r) + turn) % len(self.listed)))

    async def _phase(self, key: tuple[str, int], replica: FakeReplica, phase: str) -> None:
        self.attempts[key] = {"replica": replica.link, "phase": phase}
        async with self._changed:
            self._changed.notify_all()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        request_id = request.headers.get("x-request-id", "?")
        self.calls += 1
        try:
            return await self._answer(request, body, request_id)
        except ConnectionResetError:  # the client has left
            return web.Response(status=499)
        finally:
            self.calls -= 1
            self.ended += 1
            self._event("call_ended", request_id=request_id, outcome="ok")

    async def _tool(self) -> str:
        delay_s = sum(t["attributes"].get("latency", 0) for t in self.toxics["tool"]) / 1000
        if self.profile["profile"] == "naive" or "tool_deadline" in self.profile["without"]:
            await asyncio.sleep(delay_s)
            return "ok"
        await asyncio.sleep(min(delay_s, self.tool_deadline_s))
        return "deadline" if delay_s > self.tool_deadline_s else "ok"

    async def _answer(
        self, request: web.Request, body: dict[str, Any], request_id: str
    ) -> web.StreamResponse:
        headers = {"x-brownout-tool": await self._tool()} if "tool_call" in body else {}
        if body.get("tool_call", {}).get("method") == "submit_transfer":
            params = body["tool_call"]["params"]
            transfer = Transfer(params["from"], params["to"], params["amount"])
            self.tool.ledger.submit(request.headers["idempotency-key"], transfer)
        retries = self.profile["profile"] != "naive" and "retry" not in self.profile["without"]
        tried: list[FakeReplica] = []
        for attempt in range(1, 4 if retries else 2):
            replica = self._choose(tried)
            if replica is None:
                break
            tried.append(replica)
            key = (request_id, attempt)
            self._event("attempt_started", request_id=request_id, attempt=attempt, replica=replica.link)
            await self._phase(key, replica, "headers")
            replica.running += 1
            try:
                if not await self._alive_for(
                    replica, self.first_token_s * (1 + replica.running / self.slots)
                ):
                    self._ended(key, "failed")
                    continue
                self._event("attempt_first_token", request_id=request_id, attempt=attempt)
                await self._phase(key, replica, "streaming")
                headers |= {"x-brownout-replica": replica.link, "x-brownout-attempts": str(attempt)}
                return await self._stream(request, body, replica, key, headers)
            finally:
                replica.running -= 1
                self.attempts.pop(key, None)
        error = {"error": {"type": "upstream_lost", "message": "the replica was lost"}}
        return web.json_response(error, status=502)

    def _ended(self, key: tuple[str, int], outcome: str) -> None:
        self._event("attempt_ended", request_id=key[0], attempt=key[1], outcome=outcome, error="")

    async def _alive_for(self, replica: FakeReplica, duration_s: float) -> bool:
        """Wait for a step of the engine; with the policies off, for as long as the engine is frozen."""
        try:
            async with asyncio.timeout(duration_s):
                await replica.died.wait()
        except TimeoutError:
            if self.profile["profile"] == "naive":
                await replica.thawed.wait()
            return True
        return False

    async def _stream(
        self,
        request: web.Request,
        body: dict[str, Any],
        replica: FakeReplica,
        key: tuple[str, int],
        headers: dict[str, str],
    ) -> web.StreamResponse:
        count = body["max_tokens"]
        prompt = len(body["messages"][0]["content"].split())
        usage = {"prompt_tokens": prompt, "completion_tokens": count}
        if not body["stream"]:
            alive = await self._alive_for(replica, self.token_s * count)
            self._ended(key, "ok" if alive else "failed")
            if not alive:
                error = {"error": {"type": "upstream_lost", "message": "lost"}}
                return web.json_response(error, status=502, headers=headers)
            choice = {"message": {"content": " word" * count}, "finish_reason": "length"}
            return web.json_response({"choices": [choice], "usage": usage}, headers=headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)

        async def send(event: Any) -> None:
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())

        for number in range(count):
            finish = "length" if number == count - 1 else None
            await send({"choices": [{"delta": {"content": f" w{number}"}, "finish_reason": finish}]})
            if not await self._alive_for(replica, self.token_s):
                self._ended(key, "failed")
                await send({"error": {"type": "upstream_lost", "message": "lost in the stream"}})
                return response
        self._ended(key, "ok")
        await send({"choices": [], "usage": usage})
        await send("[DONE]")
        return response

    async def healthy(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def models(self, request: web.Request) -> web.Response:
        _, _, key = request.headers.get("authorization", "").partition("bo_")
        if key and self.tenants.exists() and f"revoked {key.split('_')[0]}" in self.tenants.read_text():
            return web.json_response({"error": {"type": "authentication_error"}}, status=401)
        return web.json_response({"data": [{"id": "fake"}]})

    # --- admin ------------------------------------------------------------------------------------------

    async def get_profile(self, request: web.Request) -> web.Response:
        return web.json_response({**self.profile, "policies": []})

    async def put_profile(self, request: web.Request) -> web.Response:
        self.profile = await request.json()
        self.profiles_set.append(self.profile)
        return web.json_response(self.profile)

    async def model_revision(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            self.revision = (await request.json())["model_revision"]
        return web.json_response({"model_revision": self.revision, "policy_revision": "p"})

    def _held(self, link: str) -> tuple[list[str], list[str]]:
        on_link = [(key[0], a["phase"]) for key, a in self.attempts.items() if a["replica"] == link]
        streaming = [request_id for request_id, phase in on_link if phase == "streaming"]
        return [request_id for request_id, phase in on_link if phase != "streaming"], streaming

    async def inflight(self, request: web.Request) -> web.Response:
        attempts = [
            {"request_id": key[0], "attempt": key[1], "replica": a["replica"], "phase": a["phase"]}
            for key, a in self.attempts.items()
        ]
        return web.json_response({"at": time.time(), "calls": self.calls, "attempts": attempts})

    async def wait(self, request: web.Request) -> web.Response:
        query = request.query
        replica = self.replica(query["replica"])
        assert replica is not None
        streaming, awaiting = int(query.get("streaming", 0)), int(query.get("awaiting", 0))

        def holds() -> bool:
            found = self._held(replica.link)
            return self.holds and len(found[0]) >= awaiting and len(found[1]) >= streaming

        try:
            async with asyncio.timeout(float(query["timeout_s"])), self._changed:
                await self._changed.wait_for(holds)
        except TimeoutError:
            return web.json_response({"error": "never held"}, status=408)
        awaiting_ids, streaming_ids = self._held(replica.link)
        answer = {
            "replica": replica.link,
            "at": time.time(),
            "awaiting": awaiting_ids,
            "streaming": streaming_ids,
        }
        return web.json_response(answer)

    async def get_events(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        found = [event for event in self.events if event["seq"] > after]
        return web.json_response({"events": found, "last": len(self.events), "dropped": 0})

    async def metrics(self, request: web.Request) -> web.Response:
        page = (
            "# TYPE brownout_calls_total counter\n"
            f'brownout_calls_total{{outcome="ok"}} {self.ended}\n'
            "# TYPE brownout_refused_total counter\n# TYPE brownout_retries_total counter\n"
            "brownout_retries_total 0\n# TYPE brownout_queue_depth gauge\n"
            f"brownout_queue_depth {self.calls}\n# TYPE brownout_live_replicas gauge\n"
            f"brownout_live_replicas {len(self.listed)}\n"
            f"# TYPE brownout_in_flight gauge\nbrownout_in_flight {self.calls}\n"
        )
        return web.Response(text=page)

    # --- links service and link proxy -------------------------------------------------------------------

    async def links(self, request: web.Request) -> web.Response:
        host = self.url.removeprefix("http://")
        found = [
            {"name": "client", "label": "client", "kind": "client", "listen": host, "upstream": host},
            {"name": "tool", "label": "tool", "kind": "tool", "listen": self.tool_listen, "upstream": host},
        ]
        for replica in self.listed:
            link = {"name": replica.link, "label": replica.label, "kind": "replica"}
            door = self.doors[int(replica.label.removeprefix(REPLICA_LABEL_PREFIX))]
            found.append({**link, "listen": door, "upstream": self.upstreams.get(replica.link, host)})
        return web.json_response({"version": len(self.events), "links": found})

    async def replica_metrics(self, request: web.Request) -> web.Response:
        replica = self.replica(request.match_info["link"])
        if replica is None or replica.died.is_set():
            return web.json_response({"error": "lost"}, status=502)
        page = (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {min(replica.running, self.slots)}\n"
            f"# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting {max(0, replica.running - self.slots)}\n"
            f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.25\n"
            f"# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total {self.preemptions}\n"
        )
        return web.Response(text=page)

    async def proxies(self, request: web.Request) -> web.Response:
        found = {name: {"name": name, "enabled": name not in self.cut} for name in self.toxics}
        return web.json_response(found)

    async def proxy(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.toxics:
            return web.json_response({"error": "proxy not found", "status": 404}, status=404)
        if request.method == "PATCH":
            (self.cut.discard if (await request.json())["enabled"] else self.cut.add)(name)
        enabled = name not in self.cut
        return web.json_response({"name": name, "enabled": enabled, "toxics": self.toxics[name]})

    async def proxy_toxics(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.toxics:
            return web.json_response({"error": "proxy not found", "status": 404}, status=404)
        if request.method == "POST":
            toxic = await request.json()
            self.toxics[name].append(toxic)
            return web.json_response(toxic)
        return web.json_response(self.toxics[name])

    async def remove_toxic(self, request: web.Request) -> web.Response:
        name, toxic = request.match_info["name"], request.match_info["toxic"]
        if name not in self.toxics:
            return web.json_response({"error": "proxy not found", "status": 404}, status=404)
        left = [t for t in self.toxics[name] if t["name"] != toxic]
        if len(left) == len(self.toxics[name]):
            return web.json_response({"error": "toxic not found", "status": 404}, status=404)
        self.toxics[name] = left
        return web.Response(status=204)

    async def tool_health(self, request: web.Request) -> web.Response:
        if self.slow_tool:
            await asyncio.sleep(sum(t["attributes"].get("latency", 0) for t in self.toxics["tool"]) / 1000)
        return web.Response(text="ok")

    def _door(self, slot: int) -> web.Application:
        """What is behind the link of a slot's replica: its own HTTP server, which answers whatever its engine does."""

        async def felt() -> FakeReplica | None:
            replica = self.replica(f"{REPLICA_LABEL_PREFIX}{slot}")
            toxics = self.toxics.get(replica.link, []) if replica else []
            await asyncio.sleep(sum(t["attributes"].get("latency", 0) for t in toxics) / 1000)
            return replica

        async def health(request: web.Request) -> web.Response:
            replica = await felt()
            return web.Response(status=503 if replica is None or replica.died.is_set() else 200)

        async def completions(request: web.Request) -> web.StreamResponse:
            replica = await felt()
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            if replica is not None:
                await replica.thawed.wait()
                await response.write(b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n')
            return response

        app = web.Application()
        app.router.add_get("/health", health)
        app.router.add_post("/v1/completions", completions)
        return app

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeCluster]:
        """Listen on free ports of loopback until the block ends."""
        app = web.Application(middlewares=[self._while_it_lives])
        app.router.add_post("/v1/chat/completions", self.completions)
        for path in ("/healthz", "/readyz"):
            app.router.add_get(path, self.healthy)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/admin/profile", self.get_profile)
        app.router.add_put("/admin/profile", self.put_profile)
        app.router.add_route("*", "/admin/revision", self.model_revision)
        app.router.add_get("/admin/inflight", self.inflight)
        app.router.add_get("/admin/wait", self.wait)
        app.router.add_get("/admin/events", self.get_events)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/links", self.links)
        app.router.add_get("/replicas/{link}/metrics", self.replica_metrics)
        app.router.add_get("/proxies", self.proxies)
        app.router.add_route("*", "/proxies/{name}", self.proxy)
        app.router.add_route("*", "/proxies/{name}/toxics", self.proxy_toxics)
        app.router.add_delete("/proxies/{name}/toxics/{toxic}", self.remove_toxic)
        tool = web.Application()
        tool.router.add_get("/health", self.tool_health)
        self.tool.add_to(tool)
        doors = [self._door(slot) for slot in range(self.replicas_wanted)]
        runners = [web.AppRunner(a, access_log=None, shutdown_timeout=0.1) for a in (app, tool, *doors)]
        for runner in runners:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        addresses = [runner.addresses[0] for runner in runners]
        self.url = f"http://127.0.0.1:{addresses[0][1]}"
        self.tool_listen = f"127.0.0.1:{addresses[1][1]}"
        self.doors = [f"127.0.0.1:{port}" for _, port in addresses[2:]]
        try:
            yield self
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for runner in runners:
                await runner.cleanup()


class FakeSubstrate:
    """The substrate protocol over a :class:`FakeCluster`. What it is asked to do is kept in ``asked``."""

    name = "fake"

    def __init__(self, cluster: FakeCluster, *, running: bool = True) -> None:
        self.cluster = cluster
        self.running = running
        self.asked: list[str] = []
        self.left: list[str] = []
        self.immortal = False
        """Whether a kill does nothing: the fault that cannot be verified."""
        self.place: StorePlace | None = StorePlace(link=LINK_STORE)
        self.commands: dict[str, Ended] = {"keys": Ended(0, "bo_a1b2c3_secret\n")}
        """How commands of the gateway end, by module."""
        self.configured: dict[str, str] = {}

    async def endpoints(self) -> Endpoints:
        if not self.running:
            raise NotRunningError("the fake cluster is not running; start it")
        url = self.cluster.url
        return Endpoints(url, url, url, url)

    async def replicas(self) -> list[ReplicaHandle]:
        alive = [r for r in self.cluster.listed if not r.died.is_set()]
        return sorted((ReplicaHandle(r.label, r.link, "", r.link) for r in alive), key=lambda r: r.label)

    async def kill(self, replica: ReplicaHandle) -> None:
        self.asked.append(f"kill {replica.link}")
        if not self.immortal:
            self.cluster.kill(replica.link)

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        found = self.cluster.replica(replica.link)
        return found is None or found.link != replica.link or found.died.is_set()

    async def restore(self, replica: ReplicaHandle) -> None:
        self.asked.append(f"restore {replica.link}")
        self.cluster.restore(replica.label)

    async def freeze(self, replica: ReplicaHandle) -> None:
        self.asked.append(f"freeze {replica.link}")
        if not self.immortal and (found := self.cluster.replica(replica.link)):
            found.thawed.clear()

    async def is_frozen(self, replica: ReplicaHandle) -> bool:
        found = self.cluster.replica(replica.link)
        return found is not None and not found.thawed.is_set()

    async def thaw(self, replica: ReplicaHandle) -> None:
        self.asked.append(f"thaw {replica.link}")
        if found := self.cluster.replica(replica.link):
            found.thawed.set()

    async def gateways(self) -> list[GatewayHandle]:
        return [GatewayHandle("gateway", str(self.cluster.gateway))] if self.cluster.gateway else []

    async def kill_gateway(self, gateway: GatewayHandle) -> None:
        self.asked.append("kill gateway")
        if not self.immortal:
            self.cluster.kill_gateway()

    async def gateway_is_dead(self, gateway: GatewayHandle) -> bool:
        return self.cluster.gateway != int(gateway.handle)

    async def start_gateway(self, gateway: GatewayHandle) -> None:
        self.asked.append("start gateway")
        if not self.cluster.gateway:
            self.cluster.start_gateway()

    async def configure_gateway(self, settings: Mapping[str, str]) -> None:
        self.asked.append(f"configure {dict(settings)}")
        self.configured = dict(settings)

    async def store(self) -> StorePlace | None:
        return self.place

    async def gateway_command(self, module: str, *arguments: str) -> Ended:
        if module == "audit_cli":
            if arguments[0] == "verify":
                return Ended(0, json.dumps({"status": "fine", "problems": [], "unclosed": []}))
            ids = [CIMultiDict(headers).get("x-request-id", "?") for headers in self.cluster.headers]
            return Ended(0, "\n".join(json.dumps({"request_id": one}) for one in ids))
        self.asked.append(" ".join((module, *arguments)))
        if module not in self.commands:
            raise SubstrateError(f"the fake cluster has no command {module}")
        if arguments[:1] == ("revoke",):
            self.cluster.tenants = Path(arguments[-1])
            self.cluster.tenants.write_text(f"revoked {arguments[1]}")
        return self.commands[module]

    async def leftovers(self) -> list[str]:
        return list(self.left)

    async def reachable(self, address: str) -> str:
        return address

    def instance(self) -> str:
        return self.cluster.url

    def versions(self) -> dict[str, str]:
        return {"fake": "1"}

    def settings(self) -> dict[str, Any]:
        return {"replicas": self.cluster.replicas_wanted, "pace": "modelled"}

    async def up(self) -> None:
        self.asked.append("up")
        self.running = True

    async def down(self) -> None:
        self.asked.append("down")
        self.running = False
