"""The audit records of one request, as its stages come to know what goes into them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from cluster.gateway.audit import Audit, Closing, Opened, Opening
from cluster.gateway.errors import InvalidRequest, to_http
from cluster.gateway.exchange import request_id_of
from cluster.gateway.identity import Identity
from cluster.gateway.schema import ChatRequest, CompletionRequest
from cluster.gateway.service import Gateway
from cluster.gateway.standing import Standing
from cluster.gateway.store.store import StoreUnavailable
from policies.errors import CallRefused, FailedClosed

_RETRY_AFTER_S: Final = 1.0
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Trail:
    """What is known of a request so far. Where the gateway has no store nothing is recorded.

    Either :meth:`refused` ends it, or :meth:`open` and then :meth:`close`.
    """

    def __init__(self, gateway: Gateway, scope: Scope, request_id: str) -> None:
        self._audit: Audit | None = gateway.state.audit
        self._clock = gateway.clock
        self._scope = scope
        self._began_at = gateway.clock.now()
        self._opened: Opened | None = None
        self._ended = False
        self.request_id = request_id
        self.identity: Identity | None = None
        self.standing: Standing | None = None
        self.model = ""
        self.tool = ""
        self.reason = ""
        """Why it did not end well, or where the answer was taken from if nothing was asked for it, in a word."""
        self._body_digest = ""
        self._body_bytes: int | None = None
        self._prompt_chars: int | None = None

    def read(self, raw: bytes) -> None:
        """The body is there."""
        if self._audit is not None:
            self._body_digest, self._body_bytes = hashlib.sha256(raw).hexdigest(), len(raw)

    def asked(self, request: ChatRequest | CompletionRequest) -> None:
        """The body has been found in order."""
        self.model = request.model
        self._prompt_chars = prompt_chars(request)
        if request.tool_call is not None:
            self.tool = request.tool_call.method

    async def open(self) -> None:
        """Record that the request begins.

        Raises:
            FailedClosed: that cannot be done, and so nothing may be done for it.
        """
        if self._audit is None:
            return
        self._ended = True  # unless there is a record, the audit itself says how it ended
        try:
            self._opened = await self._audit.open(self._opening("allowed"))
        except StoreUnavailable as error:
            raise _failed(error) from error
        self._ended = False

    def close(
        self,
        outcome: str,
        status: int,
        *,
        rung: str = "",
        attempts: int = 0,
        replica: str = "",
        tools: Sequence[Mapping[str, object]] = (),
        usage: dict[str, Any] | None = None,
    ) -> None:
        """Record how the request ended; it does not wait. One that was never opened was refused."""
        if self._audit is None or self._ended:
            return
        self._ended = True
        usage = usage or {}
        closing = Closing(
            outcome,
            status or None,
            rung,
            attempts,
            replica,
            tools,
            self.reason,
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            self._clock.now() - self._began_at,
        )
        if self._opened is None:
            self._audit.note_refused(self._opening(self.reason or outcome), closing)
        else:
            self._audit.close(self._opened, closing)

    async def refused(self, error: Exception) -> None:
        """Record a request that is refused before anything is done for it."""
        if self._audit is None or self._ended:
            return
        self._ended = True
        self.reason = word_of(error)
        await self._audit.refused(
            self._opening(self.reason), self._ending(outcome_of(error), to_http(error).status)
        )

    async def failed(self, error: Exception) -> None:
        """Record how a request ended that was answered with an error, whether it had been opened or not."""
        if self._opened is None:
            await self.refused(error)
        else:
            self.reason = word_of(error)
            self.close(outcome_of(error), to_http(error).status)

    async def looked(self, status: int) -> None:
        """Record a request that only reads, and that is about to be answered.

        Raises:
            FailedClosed: that cannot be done, so it must not be answered.
        """
        if self._audit is None or self._ended:
            return
        self._ended = True
        try:
            await self._audit.looked(self._opening("allowed"), self._ending("ok", status))
        except StoreUnavailable as error:
            raise _failed(error) from error

    def _ending(self, outcome: str, status: int) -> Closing:
        return Closing(outcome, status, reason=self.reason, seconds=self._clock.now() - self._began_at)

    def _opening(self, decision: str) -> Opening:
        who, standing = self.identity, self.standing
        return Opening(
            request_id=self.request_id,
            tenant="" if who is None else who.tenant,
            principal="" if who is None else who.principal,
            key_id="" if who is None else who.key_id,
            method=self._scope["method"],
            path=self._scope["path"],
            model=self.model,
            service_class="" if standing is None else standing.service_class,
            priority="" if standing is None else standing.priority.name.lower(),
            body_digest=self._body_digest,
            body_bytes=self._body_bytes,
            prompt_chars=self._prompt_chars,
            tool=self.tool,
            decision=decision,
        )


Endpoint = Callable[[Request, Identity], Awaitable[Response]]


def looked_at(gateway: Gateway, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a request that only reads: it knows who asks first, and is recorded before it answers."""

    async def answer(request: Request) -> Response:
        trail = Trail(gateway, request.scope, request_id_of(request.scope))
        try:
            trail.identity = identity = gateway.tenants.identify(request.scope)
            response = await endpoint(request, identity)
            await trail.looked(response.status_code)
        except Exception as error:
            await trail.refused(error)
            raise
        return response

    return answer


def acted_on(gateway: Gateway, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a request that changes something: it is recorded before it does so, and after."""

    async def answer(request: Request) -> Response:
        trail = Trail(gateway, request.scope, request_id_of(request.scope))
        try:
            trail.identity = identity = gateway.tenants.identify(request.scope)
            await trail.open()
            response = await endpoint(request, identity)
        except Exception as error:
            await trail.failed(error)
            raise
        trail.close("ok", response.status_code)
        return response

    return answer


def outcome_of(error: Exception) -> str:
    """Return how a request ended that ended with this error."""
    if isinstance(error, CallRefused):
        return "refused"
    return "invalid" if isinstance(error, InvalidRequest) else "failed"


def word_of(error: Exception) -> str:
    """Return a word for an error, which holds nothing of the request that it is about."""
    if isinstance(error, FailedClosed):
        return error.code
    if isinstance(error, CallRefused):
        return error.reason
    if isinstance(error, InvalidRequest):
        return error.code or f"status_{error.status}"
    return _CAPITAL.sub("_", type(error).__name__).lower()


def prompt_chars(request: ChatRequest | CompletionRequest) -> int | None:
    """Return the characters of the prompt; None where it is given as token ids."""
    if isinstance(request, ChatRequest):
        return sum(len(message.content) for message in request.messages if isinstance(message.content, str))
    if isinstance(request.prompt, str):
        return len(request.prompt)
    texts = [part for part in request.prompt if isinstance(part, str)]
    return sum(map(len, texts)) if texts else None


def _failed(error: StoreUnavailable) -> FailedClosed:
    return FailedClosed(
        "the request cannot be recorded, so nothing was done for it",
        what="audit",
        retry_after_s=_RETRY_AFTER_S,
    )
