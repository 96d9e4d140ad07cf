"""What the runner needs from the thing under test: one protocol, one implementation a substrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class SubstrateError(RuntimeError):
    """The substrate cannot do what was asked; the text says what to do about it. Exit code 3."""


class NotRunningError(SubstrateError):
    """The substrate is not up at all: nothing of an earlier run can be in force there."""


class ConfigurationError(SubstrateError):
    """The substrate's configuration cannot be used; what is wrong with it was said. Exit code 4."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Root URLs, without a trailing slash, as the chaos process reaches them."""

    base_url: str
    """Behind link ``client``; the OpenAI API is below ``/v1``."""
    admin_url: str
    links_url: str
    toxiproxy_url: str


@dataclass(frozen=True, slots=True)
class ReplicaHandle:
    """One live replica: its label and link, and what the substrate needs to kill it."""

    label: str
    link: str
    upstream: str
    handle: str
    """Container id, or process group leader's pid: opaque to everyone but the substrate."""


@dataclass(frozen=True, slots=True)
class GatewayHandle:
    """One gateway that runs, or ran: its name, and what the substrate needs to kill it and to start it again."""

    name: str
    handle: str


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the gateways' store is: behind a link, or a file of this machine. The other is empty."""

    link: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it wrote to its standard output and to its standard error."""

    code: int
    output: str
    errors: str = ""


class Substrate(Protocol):
    """A cluster that can be asked where it is, and whose replicas can be killed and brought back."""

    name: str

    async def endpoints(self) -> Endpoints:
        """Return where it listens.

        Raises:
            NotRunningError: it is not up.
            SubstrateError: it is up, but does not answer.
        """
        ...

    async def replicas(self) -> list[ReplicaHandle]:
        """Return the live replicas, ordered by label."""
        ...

    async def kill(self, replica: ReplicaHandle) -> None:
        """Kill it with SIGKILL: its container, or its process group. Returns when the signal is sent."""
        ...

    async def is_dead(self, replica: ReplicaHandle) -> bool:
        """Tell, from outside the serving path, whether that very container or process is gone."""
        ...

    async def restore(self, replica: ReplicaHandle) -> None:
        """See to it that a replacement comes (start the container; nothing where Serve does it). Safe twice."""
        ...

    async def freeze(self, replica: ReplicaHandle) -> None:
        """Stop its engine (SIGSTOP) and leave its HTTP server as it is. Returns when the signal is sent."""
        ...

    async def is_frozen(self, replica: ReplicaHandle) -> bool:
        """Tell, from outside the serving path, whether that very engine is stopped."""
        ...

    async def thaw(self, replica: ReplicaHandle) -> None:
        """Let a stopped engine go on. Safe twice, when it was never stopped, and when it is gone."""
        ...

    async def gateways(self) -> list[GatewayHandle]:
        """Return the gateways that run."""
        ...

    async def kill_gateway(self, gateway: GatewayHandle) -> None:
        """Kill it with SIGKILL: its container, or its process. Returns when the signal is sent."""
        ...

    async def gateway_is_dead(self, gateway: GatewayHandle) -> bool:
        """Tell, without asking it, whether that very container or process is gone."""
        ...

    async def start_gateway(self, gateway: GatewayHandle) -> None:
        """Start one that was killed, with the same settings, and return when it can answer calls. Safe twice."""
        ...

    async def configure_gateway(self, settings: Mapping[str, str]) -> None:
        """Have the gateway run with these environment variables beside what the cluster was started with.

        A gateway that runs with others is ended and another is started. Nothing gives back what it was started with.

        Raises:
            SubstrateError: this substrate cannot do it.
        """
        ...

    async def store(self) -> StorePlace | None:
        """Return where the gateways keep what must not be lost; None where they keep nothing."""
        ...

    async def gateway_command(self, module: str, *arguments: str) -> Ended:
        """Run ``python -m cluster.gateway.<module>`` with the gateway's settings; return how it ended."""
        ...

    async def leftovers(self) -> list[str]:
        """Return what an experiment must not leave: extra processes or containers, in words."""
        ...

    async def reachable(self, address: str) -> str:
        """Return host:port under which this process reaches what the gateway reaches at ``address``."""
        ...

    def instance(self) -> str:
        """Return what tells this very cluster from one that is started after it."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of what runs there."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return how the cluster was configured, for the report: replicas, pace, model."""
        ...

    async def up(self) -> None:
        """Bring it up and return when real tokens flow; at once when it is up already.

        Raises:
            SubstrateError: it cannot be brought up.
        """
        ...

    async def down(self) -> None:
        """Take it down and leave nothing. Safe twice."""
        ...
