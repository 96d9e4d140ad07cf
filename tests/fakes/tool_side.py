"""The tool behind the fake cluster: the real ledger, methods and control, served by aiohttp."""

from __future__ import annotations

import time

from aiohttp import web

from cluster.public import TOOL_PATH
from cluster.tool import jsonrpc, methods
from cluster.tool.control import AnswerLost, Control, Faults
from cluster.tool.ledger import Ledger


class ToolSide:
    """What a test may look at, and the routes."""

    def __init__(self) -> None:
        self.ledger = Ledger(time.time)
        self.control = Control()
        self._table = {
            name: self.control.wrap(name, method) for name, method in methods.table(self.ledger).items()
        }

    def add_to(self, app: web.Application) -> None:
        """Answer below the tool's path."""
        app.router.add_post(TOOL_PATH, self._rpc)
        app.router.add_get(f"{TOOL_PATH}/ledger", self._ledger)
        app.router.add_route("*", f"{TOOL_PATH}/control", self._control)

    async def _rpc(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await jsonrpc.answer(await request.read(), self._table))
        except AnswerLost:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

    async def _ledger(self, request: web.Request) -> web.Response:
        effects = self.ledger.effects(int(request.query.get("after", "0")))
        return web.json_response({"effects": [effect.to_json() for effect in effects], "replays": 0})

    async def _control(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.control.set(Faults.model_validate_json(await request.read()))
        elif request.method == "DELETE":
            self.control.set(Faults())
        return web.json_response(self.control.faults.model_dump(mode="json"))
