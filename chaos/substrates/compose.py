"""The cluster as containers of one compose project: replicas are killed and started through the engine's API.

Works from the host, where the project's ports are published on loopback, and from a container of the project's own
network, where its services are reached by name. A replica is the container of service ``worker`` whose address is
its link's upstream.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from chaos.admin import Admin, AdminError
from chaos.substrate import Endpoints, NotRunningError, ReplicaHandle, SubstrateError
from chaos.substrates.command import run_command
from cluster import public

T = TypeVar("T")
SERVICE_WORKER = "worker"
LABEL_PROJECT = "com.docker.compose.project"
LABEL_SERVICE = "com.docker.compose.service"
LABEL_ONE_OFF = "com.docker.compose.oneoff"
COMPOSE_FILE = "docker-compose.yml"
UP_TIMEOUT_S = 600.0
DOWN_TIMEOUT_S = 180.0
ENGINE_TIMEOUT_S = 20


def inside_compose() -> bool:
    """Tell whether this process runs in a container of the project's network (``BROWNOUT_IN_COMPOSE=1``)."""
    return os.environ.get("BROWNOUT_IN_COMPOSE") == "1"


class ComposeSubstrate:
    """Containers of one compose project.

    Args:
        project: name of the project; default from ``BROWNOUT_COMPOSE_PROJECT``, else ``brownout``.
        inside: whether this process runs in the project's network; default from ``BROWNOUT_IN_COMPOSE``.
        engine: a docker client, for tests; default: one made from the environment on first use.
    """

    name = "compose"

    def __init__(
        self, project: str | None = None, inside: bool | None = None, engine: Any | None = None
    ) -> None:
        self._project = project or os.environ.get("BROWNOUT_COMPOSE_PROJECT") or "brownout"
        self._inside = inside_compose() if inside is None else inside
        self._engine = engine

    # --- the engine -------------------------------------------------------------------------------------

    def _client(self) -> Any:
        if self._engine is None:
            try:
                import docker

                self._engine = docker.from_env(timeout=ENGINE_TIMEOUT_S)
                self._engine.ping()
            except ImportError as error:
                raise SubstrateError(
                    "substrate 'compose' needs the Python package 'docker': pip install 'brownout[chaos]'"
                ) from error
            except Exception as error:  # the SDK lets errors of several libraries through
                self._engine = None
                raise SubstrateError(
                    f"no container engine answers ({error}); start Docker, or use --on local"
                ) from error
        return self._engine

    async def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask the engine in a thread; whatever it raises becomes a SubstrateError."""

        def asked() -> T:
            client = self._client()
            try:
                return question(client)
            except SubstrateError:
                raise
            except Exception as error:
                raise SubstrateError(f"the container engine refused: {error}") from error

        return await asyncio.to_thread(asked)

    def _containers(self, client: Any, service: str | None = None) -> list[Any]:
        labels = [f"{LABEL_PROJECT}={self._project}"]
        if service:
            labels.append(f"{LABEL_SERVICE}={service}")
        found = client.containers.list(all=True, filters={"label": labels})
        return [c for c in found if c.labels.get(LABEL_ONE_OFF, "False") != "True"]

    # --- the substrate protocol -------------------------------------------------------------------------

    async def endpoints(self) -> Endpoints:
        running = await self._ask(
            lambda client: [c.name for c in self._containers(client) if c.status == "running"]
        )
        if not running:
            raise NotRunningError(
                f"compose project {self._project!r} is not running; start it with 'brownout up --on compose' "
                f"or 'docker compose up -d --wait'"
            )
        found = self._urls()
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
        gateway, links, proxy = ("gateway", "links", "toxiproxy") if self._inside else ("127.0.0.1",) * 3
        return Endpoints(
            base_url=f"http://{proxy}:{public.PORT_CLIENT}",
            admin_url=f"http://{gateway}:{public.PORT_GATEWAY_ADMIN}",
            links_url=f"http://{links}:{public.PORT_LINKS}",
            toxiproxy_url=f"http://{proxy}:{public.PORT_TOXIPROXY}",
        )

    async def replicas(self) -> list[ReplicaHandle]:
        async with Admin(await self.endpoints()) as admin:
            links = await admin.replica_links()
        by_address = await self._ask(self._workers_by_address)
        return [
            ReplicaHandle(link.label, link.name, link.upstream, by_address[host])
            for link in sorted(links, key=lambda link: link.label)
            if (host := link.upstream.rsplit(":", 1)[0]) in by_address
        ]

    def _workers_by_address(self, client: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for container in self._containers(client, SERVICE_WORKER):
            if container.status != "running":
                continue
            for network in container.attrs["NetworkSettings"]["Networks"].values():
                for name in (network.get("IPAddress"), *(network.get("Aliases") or ())):
                    if name:
                        found.setdefault(name, container.id)
        return found

    async def kill(self, replica: ReplicaHandle) -> None:
        def kill(client: Any) -> None:
            client.api.kill(replica.handle, signal="SIGKILL")

        await self._ask(kill)

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        def dead(client: Any) -> bool:
            import docker.errors

            try:
                return str(client.containers.get(replica.handle).status) != "running"
            except docker.errors.NotFound:
                return True

        return await self._ask(dead)

    async def restore(self, replica: ReplicaHandle) -> None:
        def start(client: Any) -> None:
            container = client.containers.get(replica.handle)
            if container.status != "running":
                container.start()

        await self._ask(start)

    async def leftovers(self) -> list[str]:
        def look(client: Any) -> list[str]:
            stopped = [c for c in self._containers(client) if c.status not in ("running", "created")]
            # A service that has done its work ends with 0, e.g. the one that deploys the application.
            return [
                f"container {c.name} is {c.status}"
                for c in stopped
                if c.attrs.get("State", {}).get("ExitCode", 1) != 0
            ]

        return await self._ask(look)

    async def reachable(self, address: str) -> str:
        """Inside the network the name serves; from the host a service is reached at its container's address."""
        if self._inside:
            return address
        host, port = address.rsplit(":", 1)

        def look(client: Any) -> str:
            for container in self._containers(client, host):
                for network in container.attrs["NetworkSettings"]["Networks"].values():
                    if network.get("IPAddress"):
                        return str(network["IPAddress"])
            return host

        return f"{await self._ask(look)}:{port}"

    def versions(self) -> dict[str, str]:
        client = self._client()
        found = {"engine": str(client.version().get("Version", "unknown"))}
        for container in self._containers(client):
            service = container.labels.get(LABEL_SERVICE, container.name)
            found[f"image {service}"] = str(container.attrs.get("Image", ""))[:19]
        return found

    def settings(self) -> dict[str, Any]:
        workers = self._containers(self._client(), SERVICE_WORKER)
        found: dict[str, Any] = {"replicas": len(workers), "project": self._project}
        for line in workers[0].attrs["Config"].get("Env") or () if workers else ():
            name, _, value = line.partition("=")
            if name.startswith("BROWNOUT_"):
                found[name.removeprefix("BROWNOUT_").lower()] = value
        return found

    # --- up and down ------------------------------------------------------------------------------------

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
