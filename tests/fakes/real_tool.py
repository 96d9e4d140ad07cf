"""The project's own tool, in this process or in one of its own (``python -m tests.fakes.real_tool PORT JOURNAL``)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.public import TOOL_PATH
from cluster.tool.app import create_app
from tests.fakes.gateway import listening


@dataclass
class RealTool:
    """Where it is, and what a test asks of it."""

    address: str
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://{self.address}{TOOL_PATH}"

    async def effects(self) -> list[dict[str, Any]]:
        """Return the ledger."""
        async with self.http.get(f"{self.url}/ledger") as response:
            told = await response.json()
        effects: list[dict[str, Any]] = told["effects"]
        return effects

    async def control(self, **faults: Any) -> None:
        """Put faults in force; none takes all away."""
        async with self.http.post(f"{self.url}/control", json=faults) as response:
            assert response.status == 200, await response.text()


class _BehindItsPath:
    """The application as Ray Serve places it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": TOOL_PATH}, receive, send)


@contextlib.asynccontextmanager
async def real_tool(journal: Path | None = None) -> AsyncIterator[RealTool]:
    """A running tool with an empty ledger, stopped at the end."""
    app = _BehindItsPath(create_app(journal=journal))
    async with listening(app) as url, aiohttp.ClientSession() as http:
        yield RealTool(url.removeprefix("http://"), http)


def main(port: int, journal: Path) -> None:
    app = _BehindItsPath(create_app(journal=journal))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", lifespan="off", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
