"""Every exception as an HTTP answer in the OpenAI error shape: one table, nothing else translates."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from cluster import public
from policies import errors as policy


class InvalidRequest(Exception):
    """The request is wrong in itself; it never reaches a replica.

    Args:
        param: the offending field, as ``messages.0.role``.
        code: a word that a program can test for.
        headers: further response headers.
    """

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


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as it leaves: status, body in the OpenAI shape, and headers."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    def event(self) -> bytes:
        """Return it as the last event of a stream that has begun."""
        return b"data: " + self.body + b"\n\n"


def shape(message: str, type_: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Return an error body in the OpenAI shape."""
    error: dict[str, Any] = {"message": message, "type": type_, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


_TABLE: tuple[tuple[type[policy.PolicyError], int, str], ...] = (
    (policy.Overloaded, 503, public.ERROR_OVERLOADED),
    (policy.NoReplica, 503, public.ERROR_NO_REPLICA),
    (policy.DeadlineExceeded, 504, public.ERROR_TIMEOUT),
    (policy.AttemptTimeout, 504, public.ERROR_TIMEOUT),
    (policy.ReplicaBusy, 503, public.ERROR_OVERLOADED),
    (policy.ReplicaFailed, 502, public.ERROR_UPSTREAM_LOST),
    (policy.ReplicaLost, 502, public.ERROR_UPSTREAM_LOST),
    (policy.ToolDeadline, 504, public.ERROR_TOOL),
    (policy.ToolError, 502, public.ERROR_TOOL),
)


def to_http(error: BaseException, *, started: bool = False) -> HttpError:
    """Return the answer to an error.

    ``started``: part of the answer has been sent. A silent replica is then a lost one, as every other end
    of a stream that is not the caller's own deadline.
    """
    if isinstance(error, InvalidRequest):
        body = shape(str(error), public.ERROR_INVALID, param=error.param, code=error.code)
        return HttpError(error.status, body, error.headers)
    if isinstance(error, policy.CallRejected):
        return HttpError(error.status, _as_openai(error), {})
    for kind, status, type_ in _TABLE:
        if isinstance(error, kind):
            if started and isinstance(error, policy.AttemptError):
                type_ = public.ERROR_UPSTREAM_LOST
            return HttpError(status, shape(str(error), type_, code=type_), _advice(error))
    return HttpError(500, shape("internal error of the gateway", "internal_error", code="internal_error"))


def _advice(error: policy.PolicyError) -> dict[str, str]:
    """Return the headers that tell a client whether and when to come back."""
    headers: dict[str, str] = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is None and isinstance(error, policy.ReplicaBusy):
        retry_after_s = 1.0
    if retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
    if isinstance(error, policy.Overloaded):
        headers[public.HEADER_SHOULD_RETRY] = "false"
    return headers


def _as_openai(error: policy.CallRejected) -> bytes:
    """Return a replica's own words if they have the OpenAI shape, else put them into it."""
    try:
        if isinstance(json.loads(error.body)["error"], dict):
            return error.body
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return shape(str(error), public.ERROR_INVALID)
