"""The cluster as containers of one compose project: replicas are killed and started through the engine's API.

Works from the host, where the project's ports are published on loopback, and from a container of the project's own
network, where its services are reached by name. A replica is the container of service ``worker`` whose address is
its link's upstream.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chaos.admin import Admin, AdminError
from chaos.probe import answered_after_s
from chaos.substrate import (
    Ended,
    Endpoints,
    GatewayHandle,
    NotRunningError,
    ReplicaHandle,
    StorePlace,
    SubstrateError,
)
from chaos.substrates.command import run_command
from chaos.substrates.containers import LABEL_SERVICE, Containers
from chaos.waiting import until
from cluster import public

SERVICE_WORKER = "worker"
SERVICE_HEAD = "head"
COMPOSE_FILE = "docker-compose.yml"
UP_TIMEOUT_S = 600.0
DOWN_TIMEOUT_S = 180.0
GATEWAY_TIMEOUT_S = 60.0


def inside_compose() -> bool:
    """Tell whether this process runs in a container of the project's network (``BROWNOUT_IN_COMPOSE=1``)."""
    return os.environ.get("BROWNOUT_IN_COMPOSE") == "1"


class ComposeSubstrate:
    """Containers of one compose project.

    Args:
        project: name of the project; default from ``BROWNOUT_COMPOSE_PROJECT``, else ``brownout``.
        inside: whether this process runs in the project's network; default from ``BROWNOUT_IN_COMPOSE``.
        engine: a docker client, for tests.
    """

    name = "compose"

    def __init__(
        self, project: str | None = None, inside: bool | None = None, engine: Any | None = None
    ) -> None:
        self._project = project or os.environ.get("BROWNOUT_COMPOSE_PROJECT") or "brownout"
        self._inside = inside_compose() if inside is None else inside
        self._containers = Containers(self._project, engine)

    async def endpoints(self) -> Endpoints:
        held = self._containers
        running = await held.ask(lambda: [c.name for c in held.of() if c.status == "running"])
        if not running:
            raise NotRunningError(
                f"compose project {self._project!r} is not running; start it with 'brownout up --on compose' "
                f"or 'docker compose up -d --wait'"
            )
        found = await held.ask(self._urls)
        async with Admin(found) as admin:
            try:
                await admin.in_flight()
                await admin.links()
            except AdminError as error:
                raise SubstrateError(
                    f"compose project {self._project!r} runs {len(running)} containers, but does not answer "
                    f"({error}); see 'docker compose -p {self._project} ps' and its logs"
                ) from error
        return found

    def _urls(self) -> Endpoints:
        """By service name inside the network, else where the services are published on this host."""

        def url(service: str, port: int) -> str:
            if self._inside:
                return f"http://{service}:{port}"
            return f"http://{self._containers.published(service, port) or f'127.0.0.1:{port}'}"

        return Endpoints(
            base_url=url("toxiproxy", public.PORT_CLIENT),
            admin_url=url("gateway", public.PORT_GATEWAY_ADMIN),
            links_url=url("links", public.PORT_LINKS),
            toxiproxy_url=url("toxiproxy", public.PORT_TOXIPROXY),
        )

    async def replicas(self) -> list[ReplicaHandle]:
        async with Admin(await self.endpoints()) as admin:
            links = await admin.replica_links()
        ids = await self._ask(lambda held: held.by_address(SERVICE_WORKER))
        return [
            ReplicaHandle(link.label, link.name, link.upstream, ids[host])
            for link in sorted(links, key=lambda link: link.label)
            if (host := link.upstream.rsplit(":", 1)[0]) in ids
        ]

    async def _ask(self, question: Callable[[Containers], Any]) -> Any:
        return await self._containers.ask(lambda: question(self._containers))

    async def kill(self, replica: ReplicaHandle) -> None:
        await self._ask(lambda held: held.kill(replica.handle))

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        return not await self._ask(lambda held: held.runs(replica.handle))

    async def restore(self, replica: ReplicaHandle) -> None:
        await self._ask(lambda held: held.start(replica.handle))

    async def freeze(self, replica: ReplicaHandle) -> None:
        await self._ask(lambda held: held.signal_engine(replica.handle, "STOP"))

    async def is_frozen(self, replica: ReplicaHandle) -> bool:
        return bool(await self._ask(lambda held: held.engine_is_stopped(replica.handle)))

    async def thaw(self, replica: ReplicaHandle) -> None:
        await self._ask(lambda held: held.signal_engine(replica.handle, "CONT"))

    async def gateways(self) -> list[GatewayHandle]:
        found = await self._ask(lambda held: held.of(public.GATEWAY_PROCESS))
        return [GatewayHandle(c.name, c.id) for c in found if c.status == "running"]

    async def kill_gateway(self, gateway: GatewayHandle) -> None:
        await self._ask(lambda held: held.kill(gateway.handle))

    async def gateway_is_dead(self, gateway: GatewayHandle) -> bool:
        return not await self._ask(lambda held: held.runs(gateway.handle))

    async def start_gateway(self, gateway: GatewayHandle) -> None:
        await self._ask(lambda held: held.start(gateway.handle))
        endpoints = await self._ask(lambda held: self._urls())

        async def ready() -> bool:
            return await answered_after_s(f"{endpoints.admin_url}/readyz", 2.0, status=200) is not None

        if not await until(ready, GATEWAY_TIMEOUT_S, 0.2):
            raise SubstrateError(
                f"container {gateway.name} runs again, but its gateway is not ready after {GATEWAY_TIMEOUT_S:g} s"
            )

    async def configure_gateway(self, settings: Mapping[str, str]) -> None:
        if settings:
            raise SubstrateError(
                f"the gateway of a compose project cannot be started with other settings ({', '.join(settings)}) by an "
                f"experiment; use --on local"
            )

    async def store(self) -> StorePlace | None:
        return StorePlace(link=public.LINK_STORE)

    async def gateway_command(self, module: str, *arguments: str) -> Ended:
        command = ["python", "-m", f"cluster.gateway.{module}", *arguments]
        return Ended(*await self._ask(lambda held: held.run(public.GATEWAY_PROCESS, command)))

    async def leftovers(self) -> list[str]:
        return list(await self._ask(lambda held: list(held.ended_badly())))

    async def reachable(self, address: str) -> str:
        """Inside the network the name serves; from the host a service is reached at its container's address."""
        if self._inside:
            return address
        host, port = address.rsplit(":", 1)
        return f"{await self._ask(lambda held: held.address(host)) or host}:{port}"

    def instance(self) -> str:
        return ",".join(
            sorted(c.id for c in self._containers.answer(lambda: self._containers.of(SERVICE_HEAD)))
        )

    def versions(self) -> dict[str, str]:
        return self._containers.answer(self._versions)

    def _versions(self) -> dict[str, str]:
        found = {"engine": str(self._containers.client().version().get("Version", "unknown"))}
        for container in self._containers.of():
            service = container.labels.get(LABEL_SERVICE, container.name)
            found[f"image {service}"] = str(container.attrs.get("Image", ""))[:19]
        return found

    def settings(self) -> dict[str, Any]:
        return self._containers.answer(self._settings)

    def _settings(self) -> dict[str, Any]:
        workers = self._containers.of(SERVICE_WORKER)
        found: dict[str, Any] = {"replicas": len(workers), "project": self._project}
        for line in workers[0].attrs["Config"].get("Env") or () if workers else ():
            name, _, value = line.partition("=")
            if name.startswith("BROWNOUT_"):
                found[name.removeprefix("BROWNOUT_").lower()] = value
        return found

    async def up(self) -> None:
        await self._compose("up", "-d", "--wait", timeout_s=UP_TIMEOUT_S)

    async def down(self) -> None:
        await self._compose("down", "-v", "--remove-orphans", timeout_s=DOWN_TIMEOUT_S)

    async def _compose(self, *arguments: str, timeout_s: float) -> None:
        if self._inside:
            raise SubstrateError(
                "this process runs in the project's own network; use docker compose on the host"
            )
        if shutil.which("docker") is None:
            raise SubstrateError("the command 'docker' is not on the PATH; install Docker with compose")
        command = ["docker", "compose", "-p", self._project, *arguments]
        await run_command(command, timeout_s, cwd=_project_folder())


def _project_folder() -> Path:
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / COMPOSE_FILE).is_file():
            return folder
    raise SubstrateError(
        f"{COMPOSE_FILE} is neither here nor beside the package; run it in the project's folder"
    )
