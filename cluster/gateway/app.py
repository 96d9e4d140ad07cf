"""The public application: ``/v1/*``, health and readiness; whatever else is asked is a 404."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster import public
from cluster.gateway import openapi
from cluster.gateway.audit_trail import looked_at
from cluster.gateway.authorisation import require_allowed
from cluster.gateway.completions import Completions
from cluster.gateway.errors import InvalidRequest, shape, to_http
from cluster.gateway.exchange import request_id_of
from cluster.gateway.generation import PATHS, check_model_name
from cluster.gateway.identity import Identity
from cluster.gateway.jobs_api import job_routes
from cluster.gateway.service import Gateway
from policies.errors import FailedClosed

_LOG = logging.getLogger(__name__)


def public_app(gateway: Gateway) -> Starlette:
    """Return what clients talk to."""
    started_at = int(time.time())

    def card() -> dict[str, object]:
        return {
            "id": gateway.context.model,
            "object": "model",
            "created": started_at,
            "owned_by": "brownout",
            "max_model_len": gateway.context.max_model_len,
        }

    async def models(request: Request, identity: Identity) -> Response:
        cards = [card()] if identity.may_use(gateway.context.model) else []
        return JSONResponse({"object": "list", "data": cards}, headers=_stamp(gateway, request))

    async def model(request: Request, identity: Identity) -> Response:
        check_model_name(request.path_params["name"], gateway.context)
        require_allowed(identity, model=gateway.context.model)
        return JSONResponse(card(), headers=_stamp(gateway, request))

    routes = [
        *(Route(path, Completions(gateway, api), methods=["POST"]) for api, path in PATHS.items()),
        Route("/v1/models", looked_at(gateway, models), methods=["GET"]),
        Route("/v1/models/{name:path}", looked_at(gateway, model), methods=["GET"]),
        *job_routes(gateway),
        openapi.route(),
        *health_routes(gateway),
    ]
    return Starlette(routes=routes, exception_handlers=_handlers(gateway))


def health_routes(gateway: Gateway) -> list[Route]:
    """Return the routes that say how the gateway is."""

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        state = {
            "ready": gateway.is_ready(),
            "draining": gateway.draining,
            "replicas": len(gateway.fleet.replicas),
            "in_rotation": gateway.live_replicas(),
            "profile": gateway.pipeline.profile,
            "exact_token_counts": gateway.counter.exact,
        }
        return JSONResponse(state, status_code=200 if gateway.is_ready() else 503)

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
    ]


def _stamp(gateway: Gateway, request: Request) -> dict[str, str]:
    return {
        public.HEADER_REQUEST_ID: request_id_of(request.scope),
        public.HEADER_PROFILE: gateway.pipeline.profile,
    }


Handlers = dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]]


def _handlers(gateway: Gateway) -> Handlers:
    """Return what gives every error of the routing the OpenAI shape too."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        message = {
            404: f"there is no {path}; try /v1/chat/completions, /v1/completions or /v1/models",
            405: f"{method} is not allowed on {path}",
        }.get(error.status_code, error.detail)
        code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
        headers = {**(error.headers or {}), **_stamp(gateway, request)}
        body = shape(message, public.ERROR_INVALID, code=code)
        return Response(body, error.status_code, {**headers, "content-type": "application/json"})

    async def failed(request: Request, error: Exception) -> Response:
        if not isinstance(error, InvalidRequest | FailedClosed):
            _LOG.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        answer = to_http(error)
        headers = {**answer.headers, **_stamp(gateway, request), "content-type": answer.content_type}
        return Response(answer.body, answer.status, headers)

    return {HTTPException: refused, InvalidRequest: failed, FailedClosed: failed, Exception: failed}
