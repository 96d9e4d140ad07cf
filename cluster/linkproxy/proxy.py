"""One link: a listening socket, the toxics that stand on it, and the connections that pass through it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from cluster.linkproxy import address, errors
from cluster.linkproxy.connection import Connection
from cluster.linkproxy.counters import ByteCounters, Labels
from cluster.linkproxy.flow import AppliedToxic, Direction

_BACKLOG: Final = 4096


@dataclass(slots=True)
class Shared:
    """What all links of one server, and so of one event loop, share."""

    rng: random.Random
    counters: ByteCounters = field(default_factory=ByteCounters)
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(256 * 1024)))


class Proxy:
    """A link as the API knows it; ``listen`` becomes the real address when it starts."""

    def __init__(self, name: str, listen: str, upstream: str, shared: Shared) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.enabled = False
        self._shared = shared
        self._toxics: list[AppliedToxic] = []
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def toxics(self) -> list[AppliedToxic]:
        """Return the toxics in the order of the API: upstream ones first."""
        return sorted(self._toxics, key=lambda applied: applied.direction == "downstream")

    async def start(self) -> None:
        """Listen; nothing when it does so already.

        Raises:
            ListenError: the address cannot be used; the link stays disabled.
        """
        if self.enabled:
            return
        sock = address.bind(self.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._accept().client, sock=sock, backlog=_BACKLOG
            )
        except OSError as error:  # another socket got to listen on the same address first
            sock.close()
            reason = error.strerror or str(error)
            raise errors.ListenError(f"listen tcp {self.listen}: {reason.lower()}") from error
        self.listen = address.bound_to(sock)
        self.enabled = True

    def stop(self) -> None:
        """Refuse new clients and close live connections, at once. Safe twice."""
        self.enabled = False
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.abort()

    async def update(self, listen: str, upstream: str, enabled: bool) -> None:
        """Move or switch the link; a move closes its connections, its toxics stay.

        Raises:
            ListenError: the new address cannot be used; the link is then disabled.
        """
        if self.differs(listen, upstream):
            self.stop()
            self.listen, self.upstream = listen, upstream
        if enabled:
            await self.start()
        else:
            self.stop()

    def differs(self, listen: str, upstream: str) -> bool:
        return self.upstream != upstream or not address.same_listen(self.listen, listen)

    def find(self, name: str) -> AppliedToxic:
        """Return a toxic by name.

        Raises:
            ApiError: 404.
        """
        for applied in self._toxics:
            if applied.name == name:
                return applied
        raise errors.toxic_not_found()

    def add(self, applied: AppliedToxic) -> None:
        """Put a toxic on the link and on its live connections.

        Raises:
            ApiError: 409, there is one of that name.
        """
        if any(other.name == applied.name for other in self._toxics):
            raise errors.toxic_exists()
        self._toxics.append(applied)
        self._apply()

    def changed(self, applied: AppliedToxic) -> None:
        """Let live connections follow a change of a toxic."""
        for connection in list(self._connections):
            connection.toxic_changed(applied)

    def remove(self, applied: AppliedToxic) -> None:
        """Take a toxic off the link and off its live connections."""
        self._toxics.remove(applied)
        self._apply()

    def remove_all(self) -> None:
        self._toxics.clear()
        self._apply()

    def _apply(self) -> None:
        for connection in list(self._connections):
            connection.apply_toxics()

    def _accept(self) -> Connection:
        counters = self._shared.counters
        directions: tuple[Direction, Direction] = ("upstream", "downstream")
        connection = Connection(
            self.upstream,
            self._toxics,
            {way: counters.of(Labels(way, self.name, self.listen, self.upstream)) for way in directions},
            self._shared.rng,
            self._shared.read_buffer,
            self._connections.discard,
        )
        self._connections.add(connection)
        return connection
