"""``POST /v1/chat/completions`` and ``/v1/completions``: sees a request through its stages, in their one order.

Each stage that must never be left out stands before what it guards: nothing is read of a body before its sender is
known, nothing is done before its record is open, and nothing is done twice under one key.
"""

from __future__ import annotations

import logging
import math
import re
from typing import Final

from starlette.types import Receive, Scope, Send

from cluster import public
from cluster.gateway import generation
from cluster.gateway.answer import Answer
from cluster.gateway.answering import Answering, Wanted
from cluster.gateway.audit_trail import Trail, word_of
from cluster.gateway.authorisation import authorise
from cluster.gateway.calls import LiveCall
from cluster.gateway.errors import InvalidRequest, to_http
from cluster.gateway.exchange import ClientLeft, Exchange, header, only_header
from cluster.gateway.identity import Identity
from cluster.gateway.keyed import claim_key, keyed_of, replay
from cluster.gateway.run_as import run_as
from cluster.gateway.schema import parse_json, validate
from cluster.gateway.service import Gateway
from cluster.gateway.tools import steps_of
from policies.clock import Deadline
from policies.errors import CallRefused, CallRejected, FailedClosed, PolicyError
from policies.events import CallEnded
from policies.idempotency import Recorded
from policies.profiles import Pipeline

_LOG = logging.getLogger(__name__)
_LONGEST_DEADLINE_S: Final = 24 * 3600.0
_SECONDS: Final = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_REPLAYED: Final = "replayed"
"""Word for the audit, of an answer that its idempotency key got before."""


class Completions:
    """The ASGI application of one of the two APIs."""

    def __init__(self, gateway: Gateway, api: generation.Api) -> None:
        self._gateway = gateway
        self._api: generation.Api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        gateway = self._gateway
        pipeline = gateway.pipeline
        exchange = Exchange(scope, receive, send)
        exchange.headers[public.HEADER_PROFILE] = pipeline.profile
        arrived_at = gateway.clock.now()  # before the body, which may take its time
        trail = Trail(gateway, scope, exchange.request_id)
        try:
            trail.identity = identity = self._identify(scope)
            raw = await exchange.read_body(gateway.settings.max_body_bytes)
            trail.read(raw)
            wanted = self._check(scope, raw, pipeline, arrived_at, identity, trail)
        except ClientLeft:
            gateway.sink.emit(CallEnded(exchange.request_id, "cancelled"))
            trail.reason = "client_left"
            trail.close("cancelled", 0)
            return
        except InvalidRequest as error:
            gateway.sink.emit(CallEnded(exchange.request_id, "invalid"))
            await trail.refused(error)
            await exchange.fail(to_http(error))
            return
        except FailedClosed as error:
            gateway.sink.emit(CallEnded(exchange.request_id, "refused", error.reason))
            await trail.refused(error)
            await exchange.fail(to_http(error))
            return
        except Exception as error:
            gateway.sink.emit(CallEnded(exchange.request_id, "failed"))
            await trail.refused(error)
            raise
        await exchange.while_connected(self._serve(exchange, pipeline, wanted, trail))

    def _identify(self, scope: Scope) -> Identity:
        """Stage 1: who asks. Of a job that was asked when it was begun."""
        job = run_as(scope)
        return self._gateway.tenants.identify(scope) if job is None else job.identity

    def _check(
        self,
        scope: Scope,
        raw: bytes,
        pipeline: Pipeline[Answer],
        arrived_at: float,
        identity: Identity,
        trail: Trail,
    ) -> Wanted:
        """Stages 2 and 3: whether the request is in order, and whether its sender may make it."""
        kind = (header(scope, "content-type") or "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            raise InvalidRequest(
                f"content-type is {kind!r}, it must be application/json",
                status=415,
                code="invalid_content_type",
            )
        body = parse_json(raw)
        request = validate(self._api, body)
        trail.asked(request)
        generation.check_model_name(request.model, self._gateway.context)
        deadline = self._deadline(scope, pipeline, arrived_at)
        methods = tuple(dict.fromkeys(tool.method for tool in request.asked_tools))
        identity, standing = authorise(identity, scope, model=request.model, methods=methods)
        trail.identity, trail.standing = identity, standing
        steps = tuple(steps_of(request, self._gateway.tool_methods))
        has_store = self._gateway.state.claims is not None
        keyed = keyed_of(scope, trail.request_id, identity, raw, steps, has_store=has_store)
        return Wanted(request, body, deadline, len(raw), standing, identity, steps, keyed)

    def _deadline(self, scope: Scope, pipeline: Pipeline[Answer], arrived_at: float) -> Deadline:
        clock = self._gateway.clock
        given = only_header(scope, public.HEADER_DEADLINE)
        if given is None:
            default_s = pipeline.default_deadline_s
            return Deadline.never(clock) if default_s is None else Deadline(arrived_at + default_s, clock)
        seconds = float(given) if _SECONDS.fullmatch(given) else math.nan
        if not 0 < seconds <= _LONGEST_DEADLINE_S:
            raise InvalidRequest(
                f"{public.HEADER_DEADLINE} is {given!r}, it must be seconds, over 0 and at most a day",
                param=public.HEADER_DEADLINE,
                code="invalid_value",
            )
        return Deadline(arrived_at + seconds, clock)

    async def _serve(
        self, exchange: Exchange, pipeline: Pipeline[Answer], wanted: Wanted, trail: Trail
    ) -> None:
        with self._gateway.calls.open(exchange.request_id) as live:
            trail.request_id = live.request_id
            answering = Answering(self._gateway, self._api, exchange, pipeline, wanted, live)
            try:
                await self._stages(answering, trail)
                live.outcome = "ok"
            except (PolicyError, InvalidRequest) as error:
                live.outcome = _outcome(error)
                live.reason = error.reason if isinstance(error, CallRefused) else ""
                trail.reason = word_of(error)
                await answering.fail(error)
            except Exception as error:
                live.outcome = "failed"
                trail.reason = "internal_error"
                _LOG.exception("call %s failed in the gateway itself", live.request_id)
                await answering.fail(error)
            finally:
                live.rung = answering.rung
                self._settle(exchange, answering, live, trail)

    async def _stages(self, answering: Answering, trail: Trail) -> None:
        """Stages 4 to 10: quota, record, claim, cache, and the answering itself."""
        await answering.reserve()
        await trail.open()
        await self._under_key(answering)
        trail.reason = answering.origin

    async def _under_key(self, answering: Answering) -> None:
        """Stage 6: what was answered before under the same key is answered again, and nothing is done."""
        keyed = answering.wanted.keyed
        if keyed is None:
            await answering.serve()
            return
        claims = self._gateway.state.claims
        assert claims is not None, "a request has a key only where there is a store"
        claimed = await claim_key(claims, keyed, answering.exchange)
        if isinstance(claimed, Recorded):
            answering.origin = _REPLAYED
            await replay(answering.exchange, claimed)
            return
        answering.under = claimed
        async with claimed.working():
            await answering.serve()

    def _settle(self, exchange: Exchange, answering: Answering, live: LiveCall, trail: Trail) -> None:
        """Stage 11: what is owed when a call has ended in whatever way. It must not wait: the client may be gone."""
        if answering.under is not None:
            answering.under.settle()
        answering.settle_quota(live.outcome)
        trail.close(
            live.outcome,
            exchange.status,
            rung=live.rung,
            attempts=answering.attempts,
            replica=answering.replica,
            tools=answering.tools_told(),
            usage=answering.usage,
        )


def _outcome(error: Exception) -> str:
    if isinstance(error, CallRefused):
        return "refused"
    return "invalid" if isinstance(error, InvalidRequest | CallRejected) else "failed"
