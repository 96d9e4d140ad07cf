"""Every exception as an HTTP answer in the OpenAI error shape: one table, nothing else translates.

What turns a call away says three things: whose fault it is (429: the caller has used up its own share; 503: the
service lacks capacity), when to come back, and whether coming back is of any use. Its body is a problem document
(RFC 9457) and the OpenAI shape at once, so that clients of either kind can read it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from cluster import public
from policies import errors as policy


class InvalidRequest(Exception):
    """The request is wrong in itself; it never reaches a replica.

    Args:
        param: the offending field, as ``messages.0.role``.
        code: a word that a program can test for.
        headers: further response headers.

    ``kind`` is its type in the OpenAI error shape.
    """

    kind: ClassVar[str] = public.ERROR_INVALID

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}


class Forbidden(InvalidRequest):
    """It is known who asks, and that they may not (403)."""

    kind: ClassVar[str] = public.ERROR_PERMISSION

    def __init__(self, message: str, *, param: str | None = None, code: str = "forbidden") -> None:
        super().__init__(message, status=403, param=param, code=code)


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as it leaves: status, body in the OpenAI shape, and headers."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    def event(self, note: dict[str, Any] | None = None) -> bytes:
        """Return it as the last event of a stream that has begun; ``note`` is its extension field ``brownout``."""
        if not note:
            return b"data: " + self.body + b"\n\n"
        return b"data: " + json.dumps({**json.loads(self.body), "brownout": note}).encode() + b"\n\n"


def shape(message: str, type_: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error body in the OpenAI shape."""
    return json.dumps({"error": _openai(message, type_, param, code)}).encode()


def _openai(message: str, type_: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"message": message, "type": type_, "param": param, "code": code}


_TABLE: Final[tuple[tuple[type[policy.PolicyError], int, str], ...]] = (
    (policy.QuotaExceeded, 429, public.ERROR_QUOTA),
    (policy.Overloaded, 503, public.ERROR_OVERLOADED),
    (policy.QueueFull, 503, public.ERROR_OVERLOADED),
    (policy.WaitedTooLong, 503, public.ERROR_OVERLOADED),
    (policy.Throttled, 503, public.ERROR_OVERLOADED),
    (policy.BreakerOpen, 503, public.ERROR_BREAKER),
    (policy.FailedClosed, 503, public.ERROR_UNAVAILABLE),
    (policy.NoReplica, 503, public.ERROR_NO_REPLICA),
    (policy.DeadlineExceeded, 504, public.ERROR_TIMEOUT),
    (policy.AttemptTimeout, 504, public.ERROR_TIMEOUT),
    (policy.ReplicaBusy, 503, public.ERROR_OVERLOADED),
    (policy.NotResumable, 502, public.ERROR_NOT_RESUMABLE),
    (policy.ReplicaFailed, 502, public.ERROR_UPSTREAM_LOST),
    (policy.ReplicaLost, 502, public.ERROR_UPSTREAM_LOST),
    (policy.ToolUnknown, 502, public.ERROR_TOOL_UNKNOWN),
    (policy.ToolBusy, 503, public.ERROR_OVERLOADED),
    (policy.ToolDeadline, 504, public.ERROR_TOOL),
    (policy.ToolError, 502, public.ERROR_TOOL),
)
_TITLES: Final = {
    public.ERROR_QUOTA: "Your share is used up",
    public.ERROR_OVERLOADED: "The service is overloaded",
    public.ERROR_BREAKER: "Something that the call needs keeps failing",
    public.ERROR_UNAVAILABLE: "What no call is answered without cannot be done",
    public.ERROR_NO_REPLICA: "Nobody is there to answer",
}
_WORTH_A_RETRY: Final = (
    policy.QuotaExceeded,
    policy.BreakerOpen,
    policy.NoReplica,
    policy.FailedClosed,
)
"""After the time that they name there is something new; nothing was done yet, and the service is not short."""
_ONLY_ADDS_LOAD: Final = (
    policy.Overloaded,
    policy.QueueFull,
    policy.WaitedTooLong,
    policy.Throttled,
    policy.ReplicaBusy,
    policy.ToolBusy,
    policy.DeadlineExceeded,
)
_LONGEST_RETRY_AFTER_S: Final = 3600.0
_PROBLEM: Final = "urn:brownout:problem:"


def to_http(error: BaseException, *, started: bool = False) -> HttpError:
    """Return the answer to an error.

    ``started``: part of the answer has been sent. A silent replica is then a lost one, as every other end
    of a stream that is neither the caller's own deadline nor a rest that must not be continued.
    """
    if isinstance(error, InvalidRequest):
        body = shape(str(error), error.kind, param=error.param, code=error.code)
        return HttpError(error.status, body, error.headers)
    if isinstance(error, policy.CallRejected):
        return HttpError(error.status, _as_openai(error), {})
    for kind, status, type_ in _TABLE:
        if isinstance(error, kind):
            if isinstance(error, policy.CallRefused | policy.ReplicaBusy) and not started:
                return _refusal(error, status, type_)
            if started and isinstance(error, policy.AttemptError | policy.CallRefused):
                type_ = type_ if kind is policy.NotResumable else public.ERROR_UPSTREAM_LOST
            return HttpError(status, shape(str(error), type_, code=type_), _advice(error))
    return HttpError(500, shape("internal error of the gateway", "internal_error", code="internal_error"))


def _refusal(error: policy.CallRefused | policy.ReplicaBusy, status: int, type_: str) -> HttpError:
    """Return the answer of a call that was turned away: a problem document with the OpenAI shape inside."""
    reason = error.reason if isinstance(error, policy.CallRefused) else type_
    if isinstance(error, policy.FailedClosed):
        reason = error.code
    problem = {
        "type": _PROBLEM + reason,
        "title": _TITLES[type_],
        "status": status,
        "detail": str(error),
        "retry_after_s": round(_retry_after_s(error), 3),
        "error": _openai(str(error), type_, None, reason),
    }
    return HttpError(status, json.dumps(problem).encode(), _advice(error), "application/problem+json")


def _retry_after_s(error: policy.CallRefused | policy.ReplicaBusy) -> float:
    """Return the time to stay away; the pause of a replica that names none is a second."""
    wanted_s = 1.0 if error.retry_after_s is None else error.retry_after_s
    return min(max(0.0, wanted_s), _LONGEST_RETRY_AFTER_S)


def _advice(error: policy.PolicyError) -> dict[str, str]:
    """Return the headers that tell a client whether and when to come back.

    ``retry-after`` knows whole seconds only, which would undo the jitter of short waits; client libraries read
    ``retry-after-ms`` first.
    """
    headers: dict[str, str] = {}
    if isinstance(error, policy.CallRefused | policy.ReplicaBusy):
        after_s = _retry_after_s(error)
        headers["retry-after"] = str(max(1, math.ceil(after_s)))
        headers["retry-after-ms"] = str(math.ceil(after_s * 1000))
    if isinstance(error, policy.ToolUnknown):
        headers[public.HEADER_SHOULD_RETRY] = "true" if error.may_be_found else "false"
        if error.may_be_found:  # whoever asks again under the same key has it looked up first
            headers["retry-after"] = "1"
    given_up = isinstance(error, policy.AttemptError) and error.given_up
    if given_up or isinstance(error, _ONLY_ADDS_LOAD):
        headers[public.HEADER_SHOULD_RETRY] = "false"
    elif isinstance(error, _WORTH_A_RETRY):
        headers[public.HEADER_SHOULD_RETRY] = "true"
    return headers


def _as_openai(error: policy.CallRejected) -> bytes:
    """Return a replica's own words if they have the OpenAI shape, else put them into it."""
    try:
        if isinstance(json.loads(error.body)["error"], dict):
            return error.body
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return shape(str(error), public.ERROR_INVALID)
