"""Ray's dashboard, as far as the links service asks it: real HTTP, an answer that the test sets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

_RECORDED = Path(__file__).with_name("serve_answers.json")


def recorded(name: str) -> bytes:
    """Return an answer that a real Ray Serve 2.60 gave (trimmed), by the name of its situation."""
    answers: dict[str, Any] = json.loads(_RECORDED.read_text())
    return json.dumps(answers[name]).encode()


@dataclass(frozen=True, slots=True)
class FakeReplica:
    """A replica in a made-up answer; ``port`` None while it does not run."""

    replica_id: str
    port: int | None
    state: str = "RUNNING"
    app: str = "llm"
    ip: str = "127.0.0.1"


def answer(*replicas: FakeReplica) -> bytes:
    """Return the answer for these replicas, in the form of the recorded ones."""
    applications: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for replica in replicas:
        application = applications.setdefault(replica.app, {"deployments": {"Replica": {"replicas": []}}})
        application["deployments"]["Replica"]["replicas"].append(
            {"replica_id": replica.replica_id, "state": replica.state}
        )
        group = groups.setdefault(
            replica.app, {"app_name": replica.app, "protocol": "HTTP", "route_prefix": "/", "targets": []}
        )
        if replica.port is not None:
            name = f"SERVE_REPLICA::{replica.app}#Replica#{replica.replica_id}"
            group["targets"].append({"ip": replica.ip, "port": replica.port, "instance_id": "", "name": name})
    return json.dumps(
        {
            "controller_info": {"actor_name": "SERVE_CONTROLLER_ACTOR"},
            "applications": applications,
            "target_groups": list(groups.values()),
        }
    ).encode()


@dataclass(slots=True)
class FakeDashboard:
    """What it answers next; ``headers`` are those of the last question."""

    port: int = 0
    body: bytes = field(default_factory=answer)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.headers = request.headers
        return web.Response(body=self.body, status=self.status, content_type="application/json")

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeDashboard]:
        """Serve on the port; 0 takes a free one and keeps it for the next time."""
        app = web.Application()
        app.router.add_get("/api/serve/applications/", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()
