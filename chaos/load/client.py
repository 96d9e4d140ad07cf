"""The load client: sends each call at its scheduled time, whatever became of the calls before it, and never retries.

Open loop: a stalled service gets the same arrivals as a fast one, and every latency counts from the
scheduled time, so that a stall cannot hide itself. Every call has a connection of its own, because a toxic's
odds are drawn once a connection, and a deadline, because real clients have one and every arm must end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import aiohttp

from chaos.history import CallRecord
from chaos.load.answer import Answer
from chaos.load.plan import PlannedCall
from chaos.load.prompts import Ask
from chaos.load.surge import Surge
from chaos.waiting import sleep_until
from cluster.public import (
    HEADER_ATTEMPTS,
    HEADER_CLASS,
    HEADER_PRIORITY,
    HEADER_REPLICA,
    HEADER_REQUEST_ID,
    HEADER_RUNG,
    HEADER_TENANT,
    HEADER_TOOL,
)

PATH = "/v1/chat/completions"


def request_body(asked: Ask, model: str) -> dict[str, Any]:
    """Return the JSON body of a call. ``ignore_eos`` is vLLM's; with it the length of the answer is known."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": asked.prompt}],
        "max_tokens": asked.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": asked.stream,
    }
    if asked.stream:
        body["stream_options"] = {"include_usage": True}
    if asked.tool_symbol:
        params = {"symbol": asked.tool_symbol}
        body["tool_call"] = {"method": "get_price", "params": params, "optional": True}
    return body


def request_headers(asked: Ask, request_id: str) -> dict[str, str]:
    """Return the headers of a call: its id, and what its class says of it."""
    headers = {HEADER_REQUEST_ID: request_id}
    if asked.call_class is not None:
        told = {
            HEADER_PRIORITY: asked.call_class.priority,
            HEADER_TENANT: asked.call_class.tenant,
            HEADER_CLASS: asked.call_class.service_class,
        }
        headers |= {name: value for name, value in told.items() if value}
    return headers


class LoadClient:
    """Carries out planned calls against an OpenAI-compatible root URL (without ``/v1``).

    Args:
        deadline_s: seconds after its scheduled time at which a call is given up, unless its class says another.
    """

    def __init__(self, base_url: str, model: str, deadline_s: float) -> None:
        self._url = base_url.rstrip("/") + PATH
        self._model = model
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> LoadClient:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(
        self,
        calls: Sequence[PlannedCall],
        arm: str,
        start_at: float,
        request_prefix: str,
        sink: Callable[[CallRecord], None],
        surge: Surge | None = None,
    ) -> None:
        """Send every call at ``start_at`` plus its offset; returns when all have ended, in bounded time.

        ``sink`` gets one record a call, in the order in which they end. Calls of a surge are sent while ``surge`` is
        open: one that was due a moment before it opened is sent then, and none any more when it is closed.
        """

        async def one(call: PlannedCall, scheduled_at: float) -> None:
            request_id = f"{request_prefix}-{call.n:05d}"
            record = await self.call(call.ask, arm, call.n, call.offset_s, scheduled_at, request_id)
            sink(replace(record, surge=True) if call.surge else record)

        async def added(group: asyncio.TaskGroup, gate: Surge) -> None:
            for call in (call for call in calls if call.surge):
                scheduled_at = start_at + call.offset_s
                await sleep_until(scheduled_at)
                if not await gate.opened():
                    return
                gate.sent += 1
                group.create_task(one(call, scheduled_at))

        try:
            async with asyncio.TaskGroup() as group:
                if surge is not None:
                    group.create_task(added(group, surge))
                for call in (call for call in calls if not call.surge):
                    scheduled_at = start_at + call.offset_s
                    await sleep_until(scheduled_at)
                    group.create_task(one(call, scheduled_at))
        except ExceptionGroup as group_error:  # a call raises nothing; the sink may, e.g. on a full disk
            raise group_error.exceptions[0] from group_error

    async def call(
        self, asked: Ask, arm: str, n: int, offset_s: float, scheduled_at: float, request_id: str
    ) -> CallRecord:
        """Make one call now and return its record, whatever its end; only cancellation is raised."""
        answer = Answer()
        sent_at = time.time()
        late = False
        deadline_s = asked.call_class.client_deadline_s if asked.call_class else self._deadline_s
        try:
            async with asyncio.timeout(max(0.0, scheduled_at + deadline_s - sent_at)):
                await self._exchange(asked, request_id, answer)
        except TimeoutError:
            late = True
        except aiohttp.ClientConnectorError as error:
            answer.fail("connection", str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = "cut" if answer.headers_at else "connection"
            answer.fail(kind, f"{type(error).__name__}: {error}")
        ended_at = time.time()
        outcome = answer.close(asked, late)
        return CallRecord(
            arm=arm,
            n=n,
            request_id=request_id,
            offset_s=offset_s,
            scheduled_at=scheduled_at,
            sent_at=sent_at,
            ended_at=ended_at,
            stream=asked.stream,
            prompt_sha=asked.sha,
            prompt_tokens=answer.prompt_tokens,
            max_tokens=asked.max_tokens,
            outcome=outcome,
            status=answer.status,
            error_type=answer.error_type,
            error=answer.error,
            headers_at=answer.headers_at,
            first_token_at=answer.token_at[0] if answer.token_at else None,
            token_at=answer.token_at,
            output_tokens=answer.output_tokens,
            finish_reason=answer.finish_reason,
            done=answer.done,
            text_sha=answer.text_sha,
            replica=answer.replica,
            attempts=answer.attempts,
            tool=answer.tool,
            call_class=asked.call_class.name if asked.call_class else "",
            rung=answer.rung,
        )

    async def _exchange(self, asked: Ask, request_id: str, answer: Answer) -> None:
        if self._session is None:
            raise RuntimeError("LoadClient is used outside 'async with'")
        headers = request_headers(asked, request_id)
        body = request_body(asked, self._model)
        async with self._session.post(self._url, json=body, headers=headers) as response:
            answer.headers_at = time.time()
            answer.status = response.status
            answer.retry_after = "retry-after" in response.headers
            answer.replica = response.headers.get(HEADER_REPLICA, "")
            answer.tool = response.headers.get(HEADER_TOOL, "")
            answer.rung = response.headers.get(HEADER_RUNG, "")
            attempts = response.headers.get(HEADER_ATTEMPTS, "")
            answer.attempts = int(attempts) if attempts.isdigit() else 0
            if asked.stream and response.status == 200:
                async for line in response.content:
                    answer.line(line, time.time())
            else:
                answer.body(await response.read())
