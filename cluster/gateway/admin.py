"""The admin application, on a port of its own: profiles, what is in flight, waiting for a state, events, metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.gateway.app import health_routes
from cluster.gateway.event_log import CAPACITY
from cluster.gateway.inflight import Snapshot
from cluster.gateway.service import BadOverride, Gateway
from policies.profiles import UnknownName

_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class WaitQuery(_Query):
    """The condition of ``GET /admin/wait``."""

    replica: str
    streaming: Annotated[int, Field(ge=0)] = 0
    awaiting: Annotated[int, Field(ge=0)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 20.0


class EventsQuery(_Query):
    """Which events ``GET /admin/events`` gives."""

    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=CAPACITY)] = CAPACITY


class ProfileBody(_Query):
    """The body of ``PUT /admin/profile``; without ``with``, what is configured holds for the configured profile."""

    profile: str
    without: list[str] = Field(default_factory=list)
    extra: list[str] | None = Field(None, alias="with")
    overrides: dict[str, Any] = Field(default_factory=dict)


class RevisionBody(_Query):
    """The body of ``PUT /admin/revision``: what was kept under another revision of the model is not given any more."""

    model_revision: Annotated[str, Field(min_length=1, max_length=128)]


class Admin:
    """The admin routes; ``closing`` ends what waits when the process is to end."""

    def __init__(self, gateway: Gateway, closing: asyncio.Event) -> None:
        self._gateway = gateway
        self._closing = closing

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/admin/profile", self._get_profile, methods=["GET"]),
            Route("/admin/profile", self._put_profile, methods=["PUT"]),
            Route("/admin/revision", self._get_revision, methods=["GET"]),
            Route("/admin/revision", self._put_revision, methods=["PUT"]),
            Route("/admin/inflight", self._inflight, methods=["GET"]),
            Route("/admin/wait", self._wait, methods=["GET"]),
            Route("/admin/events", self._events, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *health_routes(self._gateway),
        ]
        handlers: Any = {HTTPException: _plain, ValidationError: _invalid}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _profile(self) -> dict[str, Any]:
        pipeline = self._gateway.pipeline
        return {
            "profile": pipeline.profile,
            "without": list(pipeline.without),
            "with": list(pipeline.extra),
            "policies": list(pipeline.active),
            "overrides": dict(self._gateway.choice.overrides),
        }

    async def _get_profile(self, request: Request) -> Response:
        return JSONResponse(self._profile())

    async def _put_profile(self, request: Request) -> Response:
        body = ProfileBody.model_validate_json(await request.body())
        try:
            self._gateway.change_profile(body.profile, body.without, body.overrides, body.extra)
        except UnknownName as error:
            return JSONResponse({"error": str(error), "nearest": list(error.nearest)}, 400)
        except BadOverride as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(self._profile())

    def _revision(self) -> Response:
        answers = self._gateway.state.answers
        if answers is None:
            return JSONResponse({"error": "this gateway runs without a store and keeps no answers"}, 409)
        return JSONResponse(
            {"model_revision": answers.model_revision, "policy_revision": answers.policy_revision}
        )

    async def _get_revision(self, request: Request) -> Response:
        return self._revision()

    async def _put_revision(self, request: Request) -> Response:
        body = RevisionBody.model_validate_json(await request.body())
        if self._gateway.state.answers is not None:
            self._gateway.state.answers.model_revision = body.model_revision
        return self._revision()

    async def _inflight(self, request: Request) -> Response:
        attempts = [asdict(one) for one in self._gateway.inflight.attempts]
        return JSONResponse({"at": time.time(), "attempts": attempts, "calls": len(self._gateway.calls)})

    async def _wait(self, request: Request) -> Response:
        query = WaitQuery.model_validate(dict(request.query_params))
        until = self._gateway.inflight.until(
            query.replica, streaming=query.streaming, awaiting=query.awaiting, timeout_s=query.timeout_s
        )
        snapshot = await self._unless_over(request, until)
        if snapshot is not None:
            return JSONResponse(asdict(snapshot))
        wanted = f"{query.streaming} streaming and {query.awaiting} awaiting"
        return JSONResponse(
            {"error": f"{query.replica} never held {wanted} within {query.timeout_s:g} s"}, 408
        )

    async def _unless_over(self, request: Request, until: Any) -> Snapshot | None:
        """Wait for the snapshot, but not beyond the client's stay or the life of the process."""
        wanted = asyncio.ensure_future(until)
        others = [asyncio.ensure_future(self._closing.wait()), asyncio.ensure_future(_left(request))]
        try:
            await asyncio.wait((wanted, *others), return_when=asyncio.FIRST_COMPLETED)
            return wanted.result() if wanted.done() else None
        finally:
            for task in (wanted, *others):
                task.cancel()
            await asyncio.gather(wanted, *others, return_exceptions=True)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._gateway.metrics.render(), headers={"content-type": _EXPOSITION})

    async def _events(self, request: Request) -> Response:
        query = EventsQuery.model_validate(dict(request.query_params))
        return JSONResponse(asdict(self._gateway.events.after(query.after, query.limit)))


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _plain(request: Request, error: HTTPException) -> Response:
    said = f"{error.detail}: {request.method} {request.url.path}"
    return JSONResponse({"error": said}, error.status_code, dict(error.headers or {}))


async def _invalid(request: Request, error: ValidationError) -> Response:
    problem = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(step) for step in problem["loc"])
    return JSONResponse({"error": f"{where}: {problem['msg']}" if where else problem["msg"]}, 400)
