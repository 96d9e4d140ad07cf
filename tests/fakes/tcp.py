"""Upstreams for link tests, and a client that writes down what it sees: when, how much, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

BULK_BYTES = 300_000


@contextlib.asynccontextmanager
async def tcp_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve on a free port of loopback, which it gives; cuts every connection at the end."""
    open_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now[task] = writer
        try:
            with contextlib.suppress(OSError):
                await handle(reader, writer)
        finally:
            del open_now[task]
            writer.close()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_now.values():
            writer.transport.abort()  # ends the handler, which sees the end of its stream
        await asyncio.gather(*open_now)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, until the client stops."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def bulk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait for one byte, send ``BULK_BYTES``, close."""
    if await reader.read(1):
        writer.write(b"x" * BULK_BYTES)
        await writer.drain()


@dataclass(slots=True)
class Received:
    """What came until the connection ended."""

    size: int = 0
    seconds: float = 0.0
    first_byte_seconds: float | None = None
    largest_read: int = 0
    error: str | None = None
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)


class Client:
    """A TCP client over a plain socket, so that nothing between it and the kernel hides an error."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[Self]:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            yield cls(sock)
        finally:
            sock.close()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def receive(self, size: int = 65536) -> bytes:
        return await self._loop.sock_recv(self.sock, size)

    async def round_trip(self, data: bytes = b"ping") -> float:
        """Send to an echo and return the seconds until all of it is back."""
        started = self._loop.time()
        await self.send(data)
        left = len(data)
        while left:
            part = await self.receive(left)
            if not part:
                raise ConnectionAbortedError(errno.ECONNABORTED, "closed before the echo was back")
            left -= len(part)
        return self._loop.time() - started

    async def receive_all(self) -> Received:
        """Read until the connection ends, one way or another."""
        seen = Received()
        started = self._loop.time()
        try:
            while data := await self.receive():
                at = self._loop.time() - started
                seen.arrivals.append((at, data))
                if seen.first_byte_seconds is None:
                    seen.first_byte_seconds = at
                seen.size += len(data)
                seen.largest_read = max(seen.largest_read, len(data))
        except OSError as error:
            seen.error = errno.errorcode[error.errno or 0]
        seen.seconds = self._loop.time() - started
        return seen

    async def outcome(self) -> str:
        """Read once and tell how that ended: data, ``closed`` or the errno's name."""
        try:
            data = await self.receive()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return f"{len(data)} bytes" if data else "closed"


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """Give a port of loopback that answers no connect, neither yes nor no: its queue is full."""
    with contextlib.ExitStack() as held:
        sock = held.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        for _ in range(8):
            filler = held.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(sock.getsockname())
            except TimeoutError:
                break
        else:
            raise AssertionError("the kernel goes on accepting: no black hole here")
        yield sock.getsockname()[1]


def reset(sock: socket.socket) -> None:
    """Close a socket with a TCP reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Return as soon as the condition holds.

    Raises:
        TimeoutError: it did not within ``within_s``.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is observed sets no event
            await asyncio.sleep(0.01)
