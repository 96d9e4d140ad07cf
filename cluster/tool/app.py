"""The tool's HTTP side: JSON-RPC at ``POST /``, the ledger, and the test control.

Behind Ray Serve all of it lies below the application's route prefix (``cluster.public.TOOL_PATH``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.tool import jsonrpc, methods
from cluster.tool.control import AnswerLost, Control, Faults, Sleep
from cluster.tool.ledger import Ledger


class _CutConnection(Response):
    """Promises a body and sends none: the HTTP server then cuts the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class _RootWithoutSlash:
    """Lets ``POST /tool`` reach the route ``/``: behind a prefix, nothing is left of that path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root_path = scope.get("root_path", "")
        if root_path and scope.get("path") == root_path:
            scope = {**scope, "path": root_path + "/"}
        await self._app(scope, receive, send)


def create_app(
    clock: Callable[[], float] = time.time, sleep: Sleep = asyncio.sleep, journal: Path | None = None
) -> Starlette:
    """Return a tool without faults; its state lives in the application, and in the ``journal`` where there is one."""
    ledger, control = Ledger(clock, journal), Control(sleep)
    table = {name: control.wrap(name, method) for name, method in methods.table(ledger).items()}

    async def rpc(request: Request) -> Response:
        work = asyncio.ensure_future(jsonrpc.answer(await request.body(), table))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            answer = await work if work.done() else None
        except AnswerLost:
            return _CutConnection()
        finally:
            work.cancel()
            leaving.cancel()
        return Response(status_code=204) if answer is None else JSONResponse(answer)

    async def read_ledger(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isdecimal():
            return JSONResponse({"error": f"field 'after' has value {after!r}: use a whole number"}, 400)
        effects = [effect.to_json() for effect in ledger.effects(int(after))]
        return JSONResponse({"effects": effects, "replays": ledger.replays})

    async def set_control(request: Request) -> Response:
        try:
            faults = Faults.model_validate_json(await request.body())
        except ValidationError as error:
            problems = [f"field {'.'.join(map(str, one['loc']))!r}: {one['msg']}" for one in error.errors()]
            return JSONResponse({"error": problems}, 400)
        unknown = sorted(faults.methods - table.keys())
        if unknown:
            known = ", ".join(sorted(table))
            return JSONResponse({"error": f"field 'methods' has value {unknown}: known are {known}"}, 400)
        control.set(faults)
        return await read_control(request)

    async def read_control(request: Request) -> Response:
        return JSONResponse(control.faults.model_dump(mode="json"))

    async def reset_control(request: Request) -> Response:
        control.set(Faults())
        return await read_control(request)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        middleware=[Middleware(_RootWithoutSlash)],
        routes=[
            Route("/", rpc, methods=["POST"]),
            Route("/ledger", read_ledger, methods=["GET"]),
            Route("/control", set_control, methods=["POST"]),
            Route("/control", read_control, methods=["GET"]),
            Route("/control", reset_control, methods=["DELETE"]),
            Route("/healthz", healthz, methods=["GET"]),
        ],
    )


async def _left(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
