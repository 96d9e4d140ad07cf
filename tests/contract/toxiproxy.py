"""The server under test: the embedded link proxy, or the Toxiproxy that ``BROWNOUT_TOXIPROXY_URL`` names.

A real server must have no proxies that matter, for the tests remove all, and must reach this machine's loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator

import aiohttp

from cluster.linkproxy.server import serving

ENVIRONMENT = "BROWNOUT_TOXIPROXY_URL"


@contextlib.asynccontextmanager
async def under_test() -> AsyncIterator[str]:
    """Give the API's URL of a server without proxies."""
    url = os.environ.get(ENVIRONMENT)
    if url is None:
        async with serving("127.0.0.1", 0, seed=7) as embedded:
            yield embedded
        return
    url = url.rstrip("/")
    await _remove_all(url)
    try:
        yield url
    finally:
        await _remove_all(url)


async def _remove_all(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/proxies") as answer:
            names = list(await answer.json())
        for name in names:
            async with session.delete(f"{url}/proxies/{name}") as answer:
                assert answer.status == 204


class LinkUnderTest:
    """One proxy of the server under test, with the calls that the tests make to it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, name: str, port: int) -> None:
        self.port = port
        self._session = session
        self._path = f"{url}/proxies/{name}"

    @classmethod
    async def create(
        cls, session: aiohttp.ClientSession, url: str, name: str, upstream: int
    ) -> LinkUnderTest:
        """Make a proxy from a free port to ``upstream``, a port of this machine."""
        body = {"name": name, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{upstream}"}
        async with session.post(f"{url}/proxies", json=body) as answer:
            assert answer.status == 201, await answer.text()
            listen = json.loads(await answer.text())["listen"]
        return cls(session, url, name, int(listen.rpartition(":")[2]))

    async def call(self, method: str, path: str = "", body: object = None, timeout_s: float = 5.0) -> int:
        """Call below the proxy's own path and return the status."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(method, self._path + path, json=body, timeout=timeout) as answer:
            await answer.read()
            return answer.status

    async def add(
        self, kind: str, *, stream: str = "downstream", toxicity: float = 1.0, **attributes: int
    ) -> str:
        """Put a toxic on and return its name."""
        body = {"type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        assert await self.call("POST", "/toxics", body) == 200
        return f"{kind}_{stream}"

    async def remove(self, toxic: str) -> None:
        assert await self.call("DELETE", f"/toxics/{toxic}") == 204

    async def enable(self, enabled: bool) -> None:
        assert await self.call("PATCH", body={"enabled": enabled}) == 200
