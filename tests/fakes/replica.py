"""A stand-in for a vLLM replica, on real TCP: fast, and able to fail in every way that a real one can.

``tests/contract/test_replica_contract.py`` runs the same assertions against it and against the real thing.
Faults are told to it as a :class:`Behaviour`; those that must last until something has been seen are gates
(``asyncio.Event``), never sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientConnectionResetError, web

from cluster.public import SMALL_PATH
from tests.fakes.paced_steps import PacedSteps, Seat
from tests.fakes.toy_model import CONTEXT, answer_plan, output_tokens

MODEL = "brownout-tiny"
_SILENT = logging.getLogger("tests.fakes.replica")  # what is cut on purpose is no error
_SILENT.setLevel(logging.CRITICAL)


@dataclass
class Behaviour:
    """How one request is answered; the default is well."""

    status: int = 200
    retry_after: str | None = None
    headers_gate: asyncio.Event | None = None
    """Nothing is sent before it is set."""
    first_token_gate: asyncio.Event | None = None
    """Headers are sent, but no token before it is set."""
    token_gate: asyncio.Event | None = None
    """Waited for after ``stall_after`` tokens."""
    stall_after: int = 1
    cut_before_headers: bool = False
    cut_after: int | None = None
    """The connection is reset after that many tokens (0: after the headers)."""
    end_after: int | None = None
    """The answer ends in good HTTP after that many tokens, without finish_reason and [DONE]."""
    finish_reason: str | None = None
    """Instead of the true one, e.g. ``abort``."""
    without_done: bool = False
    cut_inside: bool = False
    """With ``cut_after``: half of the next event still gets out."""
    cut_before: str | None = None
    """The connection ends before this event: ``usage`` or ``done``."""
    tokens_per_event: int = 1
    error_event: int | None = None
    """After ``error_after`` tokens an error with this code comes instead of the rest."""
    error_after: int = 0
    token_interval_s: float = 0.0
    steps: PacedSteps | None = None
    """Tokens come when this gives them: the slots can be full then."""
    split: int | None = None
    """Send the stream in pieces of that many bytes, wherever they break."""


@dataclass
class Seen:
    """One request that reached the replica."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    sent_tokens: int = 0
    left_early: bool = False


class FakeReplica:
    """One replica. ``script`` answers the next requests in turn; after it ``behaviour`` holds.

    With a ``tokenizer`` (a ``tokenizers.Tokenizer``) it is a model in earnest: each token depends on all before
    it, so that an output continued elsewhere is the same only if it was continued exactly.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        self.behaviour = Behaviour()
        self.script: deque[Behaviour] = deque()
        self.seen: list[Seen] = []
        self.running = 0
        self.connections_opened = 0
        self.address = ""
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until the condition holds; it is looked at after every change of state."""
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        for root in ("", SMALL_PATH):
            app.router.add_post(f"{root}/v1/chat/completions", self._chat)
            app.router.add_post(f"{root}/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, logger=_SILENT)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        """Close the port and every connection, as a killed process does."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in list(runner.server.connections):  # type: ignore[union-attr]
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    # --- routes ------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [
            f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} {float(self.running)}',
            f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=False)

    async def _serve(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.json()
        how = self.script.popleft() if self.script else self.behaviour
        seen = Seen(request.path, body, {key.lower(): value for key, value in request.headers.items()})
        self.seen.append(seen)
        await self._count(1)
        try:
            with _seat(how, body) as seat:
                return await self._answer(request, body, how, seen, chat, seat)
        except (
            asyncio.CancelledError,
            ClientConnectionResetError,
        ):  # the latter: it left just before a write
            seen.left_early = True
            raise
        finally:
            await self._count(-1)

    async def _answer(
        self,
        request: web.Request,
        body: dict[str, Any],
        how: Behaviour,
        seen: Seen,
        chat: bool,
        seat: Seat | None,
    ) -> web.StreamResponse:
        if how.headers_gate is not None:
            await how.headers_gate.wait()
        if how.cut_before_headers:
            return self._cut(request)
        problem = refusal(body, chat=chat)
        if how.status != 200 or problem:
            return self._refuse(how, problem)
        writer = _Writer(web.StreamResponse(headers={"content-type": "text/event-stream"}), how.split)
        await writer.response.prepare(request)
        if how.first_token_gate is not None:
            await how.first_token_gate.wait()
        for number, (event, is_token) in enumerate(self._events(body, how, chat)):
            if is_token:
                if seen.sent_tokens == how.cut_after:
                    if how.cut_inside:
                        await writer.raw(_encoded(event)[: len(_encoded(event)) // 2])
                        return await self._hang_up(request)
                    return self._cut(request)
                if seen.sent_tokens == how.end_after:
                    await writer.response.write_eof()
                    return writer.response
                if how.error_event is not None and seen.sent_tokens == how.error_after:
                    said = {"message": "broken", "type": "InternalServerError", "param": None}
                    await writer.write({"error": {**said, "code": how.error_event}})
                    break
                if how.token_gate is not None and seen.sent_tokens == how.stall_after:
                    await how.token_gate.wait()
                if how.token_interval_s and number:
                    await asyncio.sleep(how.token_interval_s)
                if seat is not None:
                    await seat.token()
                seen.sent_tokens += 1
                await self._notify()
            elif how.cut_before == "usage" and event.get("usage") and not event["choices"]:
                return await self._hang_up(request)
            await writer.write(event)
        if how.cut_before == "done":
            return await self._hang_up(request)
        if not how.without_done:
            await writer.raw(b"data: [DONE]\n\n")
        await writer.response.write_eof()
        return writer.response

    def _cut(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError("cut on purpose")

    async def _hang_up(self, request: web.Request) -> web.StreamResponse:
        """Close the connection once what was written has left."""
        assert request.transport is not None
        request.transport.close()
        raise ConnectionResetError("closed on purpose")

    def _refuse(self, how: Behaviour, problem: str) -> web.Response:
        status = how.status if how.status != 200 else 400
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        error = {
            "message": problem or f"status {status} on purpose",
            "type": kind,
            "param": None,
            "code": status,
        }
        headers = {"retry-after": how.retry_after} if how.retry_after else {}
        return web.json_response({"error": error}, status=status, headers=headers)

    # --- the stream --------------------------------------------------------------------------------------

    def _events(self, body: dict[str, Any], how: Behaviour, chat: bool) -> list[tuple[dict[str, Any], bool]]:
        """Return the events of a stream in order, and for each whether it is a token."""
        choices = body.get("n") or 1
        number = 1 if self.tokenizer is None else len(self.seen)
        request_id = ("chatcmpl-" if chat else "cmpl-") + f"{number:04}"
        head = {
            "id": request_id,
            "object": _OBJECTS[chat],
            "created": number,
            "model": body.get("model", MODEL),
        }
        told = bool(body.get("return_token_ids"))
        options = body.get("stream_options") or {}
        running = options.get("include_usage") and options.get("continuous_usage_stats")
        plans = [answer_plan(body, self.tokenizer, index) for index in range(choices)]
        prompt, done = plans[0].prompt, 0
        events: list[tuple[dict[str, Any], bool]] = []

        def add(choice: dict[str, Any], is_token: bool, **more: Any) -> None:
            details: dict[str, Any] = {"completion_tokens_details": None} if chat else {}
            usage = {"usage": {**_usage(len(prompt), done), **details}} if running else {}
            events.append(({**head, "choices": [choice], **usage, **more}, is_token))

        if chat:
            for index in range(choices):
                opening = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
                ids = prompt if told else None
                add({**opening, "finish_reason": None}, False, prompt_token_ids=ids, prompt_text=None)
        longest = max(len(one.tokens) for one in plans)
        for start in range(0, longest, how.tokens_per_event):
            for index, plan in enumerate(plans):
                part = plan.tokens[start : start + how.tokens_per_event]
                if not part:
                    continue
                done += len(part)
                text = "".join(token.text for token in part)
                last = start + len(part) == len(plan.tokens)
                finish = (how.finish_reason or plan.finish) if last else None
                choice: dict[str, Any] = {"index": index}
                choice.update({"delta": {"content": text}} if chat else {"text": text})
                choice["logprobs"] = _logprobs(text, start, chat=chat) if body.get("logprobs") else None
                choice["finish_reason"] = finish
                if last or not chat:
                    choice["stop_reason"] = None
                if not chat:
                    choice["prompt_token_ids"] = prompt if told and not start else None
                choice["token_ids"] = [token.id for token in part] if told else None
                add(choice, True)
        if options.get("include_usage"):
            events.append(({**head, "choices": [], "usage": _usage(len(prompt), done)}, False))
        return events

    async def _count(self, change: int) -> None:
        self.running += change
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Writer:
    def __init__(self, response: web.StreamResponse, split: int | None) -> None:
        self.response = response
        self._split = split

    async def write(self, event: dict[str, Any]) -> None:
        await self.raw(_encoded(event))

    async def raw(self, data: bytes) -> None:
        step = self._split or len(data)
        for start in range(0, len(data), step):
            await self.response.write(data[start : start + step])
            if self._split:
                await asyncio.sleep(0)


_OBJECTS = {True: "chat.completion.chunk", False: "text_completion"}


def _encoded(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _seat(how: Behaviour, body: dict[str, Any]) -> contextlib.AbstractContextManager[Seat | None]:
    if how.steps is None:
        return contextlib.nullcontext()
    said = "messages" in body and " ".join(str(one.get("content") or "") for one in body["messages"])
    prefill = len(
        str(said or body.get("prompt")).split()
    )  # a word is about a token, for the model that is stood in for
    return how.steps.seat(prefill, output_tokens(body))


def refusal(body: dict[str, Any], *, chat: bool) -> str:
    """Return what is wrong with a request, in the cases in which vLLM finds something wrong too."""
    if chat and not body.get("messages"):
        return "messages is missing"
    if body.get("min_tokens", 0) > output_tokens(body):
        return "min_tokens must be less than or equal to max_tokens"
    if output_tokens(body) > CONTEXT:
        return "max_tokens is too large"
    return ""


def _logprobs(word: str, number: int, *, chat: bool) -> dict[str, Any]:
    if chat:
        entry = {"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}
        return {"content": [entry]}
    return {
        "text_offset": [number],
        "token_logprobs": [-0.5],
        "tokens": [word],
        "top_logprobs": [{word: -0.5}],
    }


@contextlib.asynccontextmanager
async def fake_replica(tokenizer: Any = None) -> AsyncIterator[FakeReplica]:
    """A running replica, stopped at the end."""
    replica = FakeReplica(tokenizer)
    await replica.start()
    try:
        yield replica
    finally:
        await replica.stop()
