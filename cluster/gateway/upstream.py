"""One attempt on one replica: opens the stream, reports its progress, passes tokens on, and always closes it.

A replica is judged by its headers and tokens only, because a connect through the link proxy always succeeds.
Every attempt has a connection of its own: nothing of an ejected or removed replica can be left in a pool, and
closing it is what makes the engine stop.
"""

from __future__ import annotations

import json
from typing import Any, Final

import aiohttp

from cluster.gateway.answer import Answer
from cluster.gateway.continuation import ContinuedStream
from cluster.gateway.generation import PATHS, Generation
from cluster.gateway.sse import EventStream, note_of
from cluster.public import HEADER_DEADLINE, HEADER_REQUEST_ID
from policies.call import Attempt, Call
from policies.errors import AttemptError, CallRejected, ReplicaBusy, ReplicaFailed, ReplicaLost
from policies.progress import Progress, Reached
from policies.rates import Rates

_LONGEST_ERROR: Final = 64 * 1024
_BUSY: Final = (408, 429, 503)


def new_session() -> aiohttp.ClientSession:
    """Return a session without limits, pool, time-outs or redirects: those are the policies' business."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=30),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )


class Upstream:
    """The handler at the bottom of every pipeline."""

    def __init__(self, session: aiohttp.ClientSession, rates: Rates) -> None:
        self._session = session
        self._rates = rates

    async def __call__(self, call: Call, /) -> Answer:
        """Generate on the replica that the attempt names.

        Raises:
            AttemptError: with how far it got.
        """
        attempt, generation = call.attempt, call.payload
        assert attempt is not None
        assert attempt.replica is not None
        assert isinstance(generation, Generation)
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(
                f"http://{attempt.replica.address}{PATHS[generation.api]}",
                data=generation.body,
                headers=_headers(call, attempt),
                allow_redirects=False,
            )
            attempt.progress.headers()
            if response.status != 200:
                raise await _refusal(response)
            return await self._relay(call, generation, attempt.progress, response)
        except (aiohttp.ClientError, OSError) as error:
            said = str(error) or type(error).__name__
            reached = attempt.progress.reached
            raise ReplicaLost(f"replica {attempt.replica.name} was lost: {said}", reached=reached) from error
        finally:
            if response is not None:
                response.close()  # not `async with`: leaving that waits for an upload that may never end

    async def _relay(
        self, call: Call, generation: Generation, progress: Progress, response: aiohttp.ClientResponse
    ) -> Answer:
        stream, chunks = _reading(call, generation, progress)
        receiver = generation.receiver
        opened_at: float | None = None
        read = response.content.readany
        while data := await read():
            out = stream.feed(data)
            if opened_at is None and stream.first_token_seen:
                opened_at = progress.last_at
                receiver.opened(call)
            if out and generation.stream:
                progress.pause()
                await receiver.write(out)
                progress.resume()
            if stream.done or stream.failure is not None:
                break
        stream.end()
        self._learn(call, generation, stream.usage, progress.last_at - (opened_at or progress.last_at))
        if isinstance(stream, ContinuedStream):
            return stream.answer()
        return Answer(stream.usage, tuple(chunks))

    def _learn(self, call: Call, generation: Generation, usage: dict[str, Any], streamed_s: float) -> None:
        tokens = usage.get("completion_tokens")
        if isinstance(tokens, int):
            self._rates.finished(tokens // call.work.sequences, streamed_s)


def _reading(
    call: Call, generation: Generation, progress: Progress
) -> tuple[EventStream | ContinuedStream, list[dict[str, Any]]]:
    """Return what reads the stream, and where the chunks go of a client that asked for no stream."""
    continuation, note = generation.continuation, note_of(call.delivery)
    if continuation is not None and generation.continues:
        return ContinuedStream(continuation, progress, note), []
    record, begun = (None, None) if continuation is None else continuation.begin(generation)
    chunks: list[dict[str, Any]] = [] if record is None else record.chunks
    stream = EventStream(
        progress,
        choices=generation.choices,
        want_usage=generation.want_usage,
        collect=None if generation.stream else chunks,
        record=record,
        begun=begun,
        note=note,
    )
    return stream, chunks


def _headers(call: Call, attempt: Attempt) -> dict[str, str]:
    name = call.request_id if attempt.number == 1 else f"{call.request_id}-{attempt.number}"
    headers = {"content-type": "application/json", "accept": "text/event-stream", HEADER_REQUEST_ID: name}
    if call.deadline.is_set:
        headers[HEADER_DEADLINE] = f"{call.deadline.remaining():.3f}"  # what is left now, not what there was
    return headers


async def _refusal(response: aiohttp.ClientResponse) -> AttemptError:
    """Return the error that a status other than 200 stands for."""
    body = b""
    while len(body) < _LONGEST_ERROR and (part := await response.content.readany()):
        body += part
    status = response.status
    message = f"the replica answered {status}: {_message(body)}"
    if status in _BUSY:
        retry_after_s = _seconds(response.headers.get("retry-after"))
        return ReplicaBusy(message, reached=Reached.HEADERS, retry_after_s=retry_after_s)
    if 400 <= status < 500:
        return CallRejected(message, status=status, body=body)
    return ReplicaFailed(message, reached=Reached.HEADERS)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:200].decode("utf-8", "replace")


def _seconds(text: str | None) -> float | None:
    """Return a Retry-After in seconds; its other form, a date, is not worth a second clock."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < 3600 else None
