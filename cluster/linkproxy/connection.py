"""One client and its connection to the upstream.

The client is accepted before the upstream is dialled, as in the Go server: a connect always succeeds, and a dead
upstream shows as silence or as a close. Three things differ from it on purpose:

- The dial runs beside the accept loop and the API. There, one upstream that does not answer holds up all new
  clients of its link, and every change or deletion of it, until the kernel gives up.
- A half-close is passed on. There, the end of one direction closes the whole connection.
- A reset of one end resets the other. There, it arrives as an ordinary close, which an HTTP answer without a
  length cannot tell from its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from cluster.linkproxy import address
from cluster.linkproxy.counters import ByteCount
from cluster.linkproxy.flow import AppliedToxic, Direction, Flow

_log = logging.getLogger(__name__)

_EARLY_BYTES: Final = 64 * 1024
"""How much of the client's data is taken while the upstream is being dialled."""
_DIAL_AFTER_EOF_S: Final = 5.0
"""How long a dial may last after the client has stopped sending: it has most likely left."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class _Side(asyncio.BufferedProtocol):
    """One socket of a connection: ``inflow`` is fed by it, ``outflow`` is written to it."""

    def __init__(self, connection: Connection, inflow: Flow, outflow: Flow) -> None:
        self.connection = connection
        self.inflow = inflow
        self.outflow = outflow
        self.feed: Callable[[bytes], None] = inflow.feed
        self.transport: asyncio.Transport | None = None
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connection.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.feed(bytes(self.connection.read_buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.connection.half_closed(self)
        return True  # keep the other direction open

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.connection.lost(self, exc)

    def pause_writing(self) -> None:
        self.outflow.pause_writing()

    def resume_writing(self) -> None:
        self.outflow.resume_writing()


class Connection:
    """Pairs a client with the upstream and ends both together.

    Args:
        upstream: ``host:port`` to dial.
        toxics: the link's toxics, read again whenever they change.
        counts: byte counts of the two directions.
        read_buffer: shared by all connections of an event loop, which fills it and hands it over within one
            callback; so an idle connection costs no buffer.
        on_gone: called when both sockets are closed.
    """

    def __init__(
        self,
        upstream: str,
        toxics: Sequence[AppliedToxic],
        counts: dict[Direction, ByteCount],
        rng: random.Random,
        read_buffer: memoryview,
        on_gone: Callable[[Connection], None],
    ) -> None:
        self.read_buffer = read_buffer
        self._address = upstream
        self._toxics = toxics
        self._on_gone = on_gone
        self._up = Flow("upstream", self, counts["upstream"], rng)
        self._down = Flow("downstream", self, counts["downstream"], rng)
        self.client = _Side(self, inflow=self._up, outflow=self._down)
        self._upstream = _Side(self, inflow=self._down, outflow=self._up)
        self.client.feed = self._take_early
        self._early: list[bytes] = []
        self._early_end = False
        self._dial: asyncio.Task[None] | None = None
        self._closing = False

    # --- toxics ------------------------------------------------------------------------------------------

    def apply_toxics(self) -> None:
        """Follow an addition or a removal on the link."""
        if self._upstream.transport is not None:
            for flow in (self._up, self._down):
                flow.apply(self._toxics)

    def toxic_changed(self, applied: AppliedToxic) -> None:
        """Follow a change of a toxic's attributes or toxicity."""
        if self._upstream.transport is not None:
            flow = self._up if applied.direction == "upstream" else self._down
            flow.changed(applied, self._toxics)

    # --- ends (a Line for the toxics, a FlowOwner for the flows) --------------------------------------------

    def close(self) -> None:
        self._stop()
        for transport in self._transports():
            transport.close()

    def reset(self) -> None:
        for transport in self._transports():
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.abort()

    def abort(self) -> None:
        """Close both ends at once; what was not delivered is lost."""
        self._stop()
        for transport in self._transports():
            transport.abort()

    def ended(self, flow: Flow, reset: bool) -> None:
        if reset:
            self.reset()
        elif self._up.done and self._down.done:
            self.close()
        elif flow.dest is not None and not flow.dest.is_closing():
            flow.dest.write_eof()

    # --- what the sockets report ------------------------------------------------------------------------

    def made(self, side: _Side) -> None:
        assert side.transport is not None
        if self._closing:
            side.transport.abort()
            return
        if side is self.client:
            self._dial = asyncio.get_running_loop().create_task(self._reach_upstream())
            return
        assert self.client.transport is not None
        self._up.start(self.client.transport, side.transport, self._toxics)
        self._down.start(side.transport, self.client.transport, self._toxics)
        self.client.feed = self._up.feed
        if sum(map(len, self._early)) >= _EARLY_BYTES:
            self.client.transport.resume_reading()
        for data in self._early:
            self._up.feed(data)
        self._early.clear()
        if self._early_end:
            self._up.end(reset=False)

    def half_closed(self, side: _Side) -> None:
        if self._upstream.transport is not None:
            side.inflow.end(reset=False)
        elif self._dial is not None:
            self._early_end = True
            asyncio.get_running_loop().call_later(_DIAL_AFTER_EOF_S, self._give_up_dial)

    def lost(self, side: _Side, exc: Exception | None) -> None:
        if self._upstream.transport is None:
            self.abort()  # the client left before the upstream was reached
        elif not self._closing:
            side.outflow.abandon()
            side.inflow.end(reset=exc is not None)
            if self._up.done and self._down.done:
                self.close()
        if self.client.gone and (self._upstream.gone or self._upstream.transport is None):
            self._on_gone(self)

    # --- inside ------------------------------------------------------------------------------------------

    def _transports(self) -> list[asyncio.Transport]:
        return [
            side.transport
            for side in (self.client, self._upstream)
            if side.transport is not None and not side.gone
        ]

    def _stop(self) -> None:
        self._closing = True
        self._up.abandon()
        self._down.abandon()
        if self._dial is not None and self._upstream.transport is None:
            self._dial.cancel()

    def _take_early(self, data: bytes) -> None:
        before = sum(map(len, self._early))
        self._early.append(data)
        if before < _EARLY_BYTES <= before + len(data) and self.client.transport is not None:
            self.client.transport.pause_reading()

    def _give_up_dial(self) -> None:
        if self._upstream.transport is None and not self._closing:
            self.close()

    async def _reach_upstream(self) -> None:
        try:
            host, port = address.split(self._address)
            await asyncio.get_running_loop().create_connection(lambda: self._upstream, host, port)
        except (OSError, ValueError) as error:
            _log.debug("upstream %s cannot be reached: %s", self._address, error)
            self.close()
