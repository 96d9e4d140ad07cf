"""Does one job: its request goes through the gateway's own application, and what comes out is judged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message

from cluster import public
from cluster.gateway.identity import Identity
from cluster.gateway.run_as import RUN_AS, RunAs
from policies.priority import Priority
from policies.work_queue import DONE, FAILED, QUEUED, Job, Lease, Result

ENTITLEMENT_REVOKED: Final = "entitlement_revoked"
_KEPT: Final = (
    "content-type",
    public.HEADER_REQUEST_ID,
    public.HEADER_RUNG,
    public.HEADER_REPLICA,
    public.HEADER_ATTEMPTS,
    public.HEADER_TOOL,
)
_LATER: Final = (408, 409, 425, 429, 503)
"""Nothing was done, or somebody is at it: it is begun again, and that costs no attempt."""
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a job that was tried: ``state`` is ``queued`` where it is to be tried again."""

    state: str
    reason: str = ""
    result: Result | None = None
    after_s: float = 0.0
    counted: bool = True


def request_id_of(job: Job) -> str:
    """Return the id of the request that this try of a job makes."""
    return f"{job.id}.{job.attempts}"


async def do(app: ASGIApp, lease: Lease, identity: Identity) -> Result:
    """Have the application answer the job's request, at the lowest priority; return the whole answer."""
    job = lease.job
    headers = {
        "content-type": "application/json",
        "content-length": str(len(lease.payload)),
        public.HEADER_REQUEST_ID: request_id_of(job),
        public.HEADER_TENANT: job.tenant,
        public.HEADER_PRIORITY: Priority.SHEDDABLE.label,
    }
    if job.service_class:
        headers[public.HEADER_CLASS] = job.service_class
    if _asks_tools(lease.payload):
        headers[public.HEADER_IDEMPOTENCY_KEY] = job.id  # a tool that has acted is not asked again
    path = job.about["path"]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
        RUN_AS: RunAs(identity, job.id),
    }
    asked, never = False, asyncio.Event()
    status, sent, body = 0, dict[str, str](), bytearray()

    async def receive() -> Message:
        nonlocal asked
        if asked:
            await never.wait()  # the one who asked does not leave
        asked = True
        return {"type": "http.request", "body": lease.payload, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            sent.update((name.decode(), value.decode("latin-1")) for name, value in message["headers"])
        else:
            body.extend(message.get("body", b""))

    await app(scope, receive, send)
    return Result(bytes(body), status, sent)


def judge(result: Result, attempt: int) -> Verdict:
    """Return what becomes of a job whose request got this answer at that attempt."""
    if 200 <= result.status < 300:
        return Verdict(DONE, result=_kept(result))
    why = _said(result)
    if result.status in (401, 403):
        return Verdict(FAILED, ENTITLEMENT_REVOKED, _kept(result))
    if result.status in _LATER:
        return Verdict(QUEUED, why, after_s=_pause_s(result.headers), counted=False)
    if 400 <= result.status < 500:
        return Verdict(FAILED, why, _kept(result))
    return Verdict(QUEUED, why, after_s=min(_LONGEST_PAUSE_S, 2.0 ** (attempt - 1)))


def _asks_tools(payload: bytes) -> bool:
    body: dict[str, Any] = json.loads(payload)
    return bool(body.get("tool_call") or body.get("tool_calls"))


def _kept(result: Result) -> Result:
    headers = {name: value for name, value in result.headers.items() if name in _KEPT}
    return Result(result.body, result.status, headers)


def _said(result: Result) -> str:
    """Return status and the word of the error; not its text, which may quote what was asked."""
    try:
        error = json.loads(result.body)["error"]
        word = error["code"] or error["type"]
    except (ValueError, KeyError, TypeError):
        word = "no error in the answer"
    return f"{result.status} {word}"


def _pause_s(headers: Mapping[str, str]) -> float:
    try:
        pause_s = float(headers.get("retry-after-ms", "")) / 1000
    except ValueError:
        pause_s = 1.0
    return min(_LONGEST_PAUSE_S, max(0.05, pause_s))
