"""One HTTP exchange at ASGI level: bounded reading, streaming, and a client that may leave at any moment.

Written against ASGI itself because the two things that matter here are what frameworks hide: the answer's
head must wait for the first token, and a client that leaves must end the work at once, whatever it waits for.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from cluster import public
from cluster.gateway.errors import HttpError, InvalidRequest

_BODY_TIMEOUT_S: Final = 30.0
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")


class ClientLeft(Exception):
    """The client closed its connection."""


def request_id_of(scope: Scope) -> str:
    """Return the client's own request id if it is well formed, else a new one."""
    given = header(scope, public.HEADER_REQUEST_ID)
    return given if given is not None and _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


def header(scope: Scope, name: str) -> str | None:
    """Return a request header, or None."""
    wanted = name.encode()
    for key, value in scope["headers"]:
        if key == wanted:
            return str(value.decode("latin-1"))
    return None


def only_header(scope: Scope, name: str) -> str | None:
    """Return a request header that must not be there twice, or None.

    Raises:
        InvalidRequest: it is: whoever stands in front may have read the other one.
    """
    wanted = name.encode()
    given = [value for key, value in scope["headers"] if key == wanted]
    if len(given) > 1:
        raise InvalidRequest(
            f"{name} is given {len(given)} times; send it once", param=name, code="repeated_header"
        )
    return given[0].decode("latin-1") if given else None


class Exchange:
    """A request and its answer. ``headers`` collects what every answer carries, whatever it will be."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self.request_id = request_id_of(scope)
        self.headers: dict[str, str] = {public.HEADER_REQUEST_ID: self.request_id}
        self.started = False
        self.status = 0
        """Of the answer, once it has begun."""
        self.sent: dict[str, str] = {}
        """The headers that went out with its head."""
        self.kind = ""
        """Content type of the answer, once it has begun."""
        self.cut = False
        """Whether the answer ended with an error after it had begun."""
        self.copy: bytearray | None = None
        """Takes a copy of the answer's body while it goes out, where somebody has put a buffer here."""
        self.before_end: Callable[[], Awaitable[None]] | None = None
        """Awaited before the last part goes out: what must be on disk before the client has a whole answer."""

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body.

        Raises:
            InvalidRequest: it has more than ``limit`` bytes (413), or is not all there in time (408).
            ClientLeft: the client left while it was sending.
        """
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await self._read_body(limit)
        except TimeoutError:
            raise InvalidRequest(
                f"the body did not arrive within {_BODY_TIMEOUT_S:g} s",
                status=408,
                code="request_timeout",
                headers={"connection": "close"},
            ) from None

    async def _read_body(self, limit: int) -> bytes:
        announced = header(self.scope, "content-length")
        if announced is not None and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end; cancel it, and wait for it, as soon as the client leaves."""
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(self._until_left())
        try:
            await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            if not task.done():
                task.cancel()
            await asyncio.wait((task, watcher))
        if not task.cancelled():
            task.result()

    async def _until_left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        self.kind = "text/event-stream; charset=utf-8"
        await self._start(200, _NO_CACHE)

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client does not read."""
        if self.copy is not None:
            self.copy += data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        if self.copy is not None:
            self.copy += data
        if self.before_end is not None:
            await self.before_end()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def json(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer."""
        length = str(len(body)).encode()
        self.kind = content_type
        self.status = status
        if self.copy is not None:
            self.copy += body
        if self.before_end is not None:  # before the head: what cannot be kept must not look like an answer
            await self.before_end()
        await self._start(status, [(b"content-length", length)])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: HttpError, note: dict[str, Any] | None = None) -> None:
        """Send an error: as a whole answer, or with the ``note`` as the last event of a stream that has begun."""
        if self.started:
            self.cut = True
            await self.end(error.event(note))
        else:
            self.headers.update(error.headers)
            await self.json(error.status, error.body, error.content_type)

    async def _start(self, status: int, more: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self.status = status
        self.sent = dict(self.headers)
        head = [(b"content-type", self.kind.encode()), *more]
        head.extend((name.encode(), value.encode("latin-1")) for name, value in self.headers.items())
        await self._send({"type": "http.response.start", "status": status, "headers": head})


_NO_CACHE = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"the body has more than {limit} bytes",
        status=413,
        code="request_too_large",
        headers={"connection": "close"},
    )
