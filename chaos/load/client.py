"""The load client: sends each call at its scheduled time, whatever became of the calls before it.

It never retries, but where a class of calls says that its clients do (:mod:`chaos.load.habits`).

Open loop: a stalled service gets the same arrivals as a fast one, and every latency counts from the
scheduled time, so that a stall cannot hide itself. Every call has a connection of its own, because a toxic's
odds are drawn once a connection, and a deadline, because real clients have one and every arm must end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import aiohttp

from chaos.experiment import Clients
from chaos.history import CallRecord
from chaos.load.answer import ACCEPTED, Answer
from chaos.load.habits import Habit, pause_s
from chaos.load.jobs import follow, job_result, job_state
from chaos.load.plan import PlannedCall
from chaos.load.prompts import Ask
from chaos.load.surge import Surge
from chaos.tool import TRANSFER
from chaos.waiting import sleep_until
from cluster.public import HEADER_CLASS, HEADER_PRIORITY, HEADER_REQUEST_ID, HEADER_TENANT

PATH = "/v1/chat/completions"


@dataclass(slots=True)
class _Made:
    """A call while it is made: its tries so far, and the answer of the last."""

    call_id: str
    habit: Habit
    answer: Answer = field(default_factory=Answer)
    tries: list[dict[str, Any]] = field(default_factory=list)


def habit_of(asked: Ask, clients: Clients) -> Habit:
    """Return how a call is sent: as its class says, and as the arm lets it."""
    if asked.call_class is None:
        return Habit(keyed=asked.transfer)
    repeats = asked.call_class.repeats
    return Habit(
        keyed=asked.transfer or repeats,
        repeats=repeats and clients != "once",
        same_key=clients != "new_keys",
        anew=clients == "no_cache",
    )


def request_body(asked: Ask, model: str, call_id: str = "") -> dict[str, Any]:
    """Return the JSON body of a call. ``ignore_eos`` is vLLM's; with it the length of the answer is known.

    ``call_id`` names the sender of a transfer, so that the ledger tells whose each effect is.
    """
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
    if asked.transfer:
        transfer = {"from": call_id, "to": "merchant", "amount": "10"}
        body["tool_call"] = {"method": TRANSFER, "params": transfer, "optional": False}
    elif asked.tool_symbol:
        params = {"symbol": asked.tool_symbol}
        body["tool_call"] = {"method": "get_price", "params": params, "optional": True}
    return body


def request_headers(asked: Ask, request_id: str, key: str = "", api_key: str = "") -> dict[str, str]:
    """Return the headers of a call: its id, its idempotency key, who asks, and what its class says of it."""
    headers = {HEADER_REQUEST_ID: request_id}
    if asked.call_class is not None:
        told = {
            HEADER_PRIORITY: asked.call_class.priority,
            HEADER_TENANT: asked.call_class.tenant,
            HEADER_CLASS: asked.call_class.service_class,
            "prefer": "respond-async" if asked.call_class.respond_async else "",
        }
        headers |= {name: value for name, value in told.items() if value}
    if key:
        headers["idempotency-key"] = key
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return headers


def owner_headers(api_key: str, tenant: str) -> dict[str, str]:
    """Return the headers of whoever asks for a job of their own."""
    key = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return key | ({HEADER_TENANT: tenant} if tenant else {})


class LoadClient:
    """Carries out planned calls against an OpenAI-compatible root URL (without ``/v1``).

    Args:
        deadline_s: seconds after its scheduled time at which a call is given up, unless its class says another.
        api_keys: what goes after ``Bearer``, by the names that classes give their keys; what has no class, or one
            without a key, is sent with the key of the name ``""``, if there is one.
    """

    def __init__(
        self, base_url: str, model: str, deadline_s: float, api_keys: Mapping[str, str] | None = None
    ) -> None:
        self._root = base_url.rstrip("/")
        self._url = self._root + PATH
        self._model = model
        self._deadline_s = deadline_s
        self._api_keys = dict(api_keys or {})
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
        clients: Clients = "",
    ) -> None:
        """Send every call at ``start_at`` plus its offset; returns when all have ended, in bounded time.

        ``sink`` gets one record a call, in the order in which they end. Calls of a surge are sent while ``surge`` is
        open: one that was due a moment before it opened is sent then, and none any more when it is closed.
        """

        async def one(call: PlannedCall, scheduled_at: float) -> None:
            request_id = f"{request_prefix}-{call.n:05d}"
            record = await self.call(call.ask, arm, call.n, call.offset_s, scheduled_at, request_id, clients)
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
        self,
        asked: Ask,
        arm: str,
        n: int,
        offset_s: float,
        scheduled_at: float,
        request_id: str,
        clients: Clients = "",
    ) -> CallRecord:
        """Make one call now and return its record, whatever its end; only cancellation is raised."""
        sent_at = time.time()
        made = _Made(request_id, habit_of(asked, clients))
        of_class = asked.call_class
        deadline_s = of_class.client_deadline_s if of_class else self._deadline_s
        late = False
        try:
            async with asyncio.timeout(max(0.0, scheduled_at + deadline_s - sent_at)):
                await self._until_final(asked, made)
            if made.answer.job and of_class is not None:
                async with asyncio.timeout(max(0.0, scheduled_at + of_class.result_within_s - time.time())):
                    await self._follow(asked, made.answer)
        except TimeoutError:
            late = True
        ended_at = time.time()
        answer = made.answer
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
            call_class=of_class.name if of_class else "",
            rung=answer.rung,
            tries=made.tries if made.habit.repeats else [],
            api_key=of_class.api_key if of_class else "",
            tenant=of_class.tenant if of_class else "",
            effect=request_id if asked.transfer else "",
            cache=answer.cache,
            job=answer.job,
            accepted_at=answer.accepted_at,
        )

    async def _until_final(self, asked: Ask, made: _Made) -> None:
        while True:
            number, began_at = len(made.tries) + 1, time.time()
            made.answer = answer = Answer()
            request_id = made.call_id if number == 1 else f"{made.call_id}.{number}"
            try:
                await self._exchange(asked, made, request_id, answer)
            except aiohttp.ClientConnectorError as error:
                answer.fail("connection", str(error))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if isinstance(error, TimeoutError):
                    raise
                kind = "cut" if answer.headers_at else "connection"
                answer.fail(kind, f"{type(error).__name__}: {error}")
            finally:
                told = {"status": answer.status, "error_type": answer.error_type}
                made.tries.append(
                    {"request_id": request_id, "sent_at": began_at, "ended_at": time.time(), **told}
                )
            wait_s = pause_s(answer, number) if made.habit.repeats else None
            if wait_s is None:
                return
            await asyncio.sleep(wait_s)

    def _api_key(self, asked: Ask) -> str:
        return self._api_keys.get(asked.call_class.api_key if asked.call_class else "", "")

    async def _follow(self, asked: Ask, answer: Answer) -> None:
        headers = owner_headers(self._api_key(asked), asked.call_class.tenant if asked.call_class else "")
        await follow(self._opened(), self._root + answer.job, headers, answer)

    async def job(self, record: CallRecord) -> tuple[str, str, str]:
        """Return the state of the job that a call became, the reason for it, and the digest of its result's text."""
        headers = owner_headers(self._api_keys.get(record.api_key, ""), record.tenant)
        session, url = self._opened(), self._root + record.job
        state, reason = await job_state(session, url, headers)
        answer = Answer(status=ACCEPTED)
        if state == "done":
            await job_result(session, url, headers, answer)
        return state, reason, answer.text_sha

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("LoadClient is used outside 'async with'")
        return self._session

    async def _exchange(self, asked: Ask, made: _Made, request_id: str, answer: Answer) -> None:
        key = made.habit.key(made.call_id, len(made.tries) + 1)
        headers = request_headers(asked, request_id, key, self._api_key(asked))
        if made.habit.anew:
            headers["cache-control"] = "no-cache"
        body = request_body(asked, self._model, made.call_id)
        async with self._opened().post(self._url, json=body, headers=headers) as response:
            answer.headers_at = time.time()
            answer.heard(response.status, response.headers)
            if asked.stream and response.status == 200:
                async for line in response.content:
                    answer.line(line, time.time())
                return
            raw = await response.read()
            if answer.job:
                answer.accepted_at = time.time()
            else:
                answer.body(raw)
