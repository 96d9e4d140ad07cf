"""Makes and removes proxies in Toxiproxy, with a timeout on every call.

Removal is two calls on purpose. A proxy whose upstream does not answer can keep the Go server's accept loop in
its dial for minutes; stopping the proxy waits for that. A deletion waits *while it holds the lock of all proxies*,
so that no new link could be made in the meantime. Disabling waits with the lock of that one proxy only, and a
disabled one is deleted at once.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from cluster.links.records import ProxySeen


class ToxiproxyError(RuntimeError):
    """A call to the link proxy failed; the text says which and why."""


class PortTakenError(ToxiproxyError):
    """The port to listen on is held by somebody else."""


class ProxyDiffersError(ToxiproxyError):
    """There is another proxy of that name."""


class ToxiproxyClient:
    """Talks to one link proxy over an open session."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float = 2.0) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def proxies(self) -> dict[str, ProxySeen]:
        """Return all proxies by name.

        Raises:
            ToxiproxyError: no usable answer.
        """
        status, answer = await self._ask("GET", "/proxies")
        if status != 200:
            raise ToxiproxyError(f"GET {self._url}/proxies: status {status}: {_reason(answer)}")
        return {name: _read(proxy) for name, proxy in answer.items()}

    async def create(self, name: str, listen: str, upstream: str) -> None:
        """Make a proxy; that very one may be there already, left by a call whose answer was lost.

        Raises:
            PortTakenError, ProxyDiffersError, ToxiproxyError: it is not there.
        """
        body = {"name": name, "listen": listen, "upstream": upstream, "enabled": True}
        status, answer = await self._ask("POST", "/proxies", body)
        if status == 201:
            return
        if status == 409:
            status, there = await self._ask("GET", f"/proxies/{name}")
            if status == 200 and _read(there) == ProxySeen(_port(listen), upstream):
                return
            raise ProxyDiffersError(f"link {name!r}: Toxiproxy has another proxy of that name: {there}")
        reason = _reason(answer)
        if "address already in use" in reason:
            raise PortTakenError(f"link {name!r}: {reason}")
        raise ToxiproxyError(f"link {name!r} cannot be made: status {status}: {reason}")

    async def remove(self, name: str) -> None:
        """Disable and delete a proxy; safe when it is not there.

        Raises:
            ToxiproxyError: it may still be there.
        """
        for method, body in (("PATCH", {"enabled": False}), ("DELETE", None)):
            status, answer = await self._ask(method, f"/proxies/{name}", body)
            if status == 404:
                return
            if status >= 300:
                raise ToxiproxyError(f"link {name!r}: {method} gave status {status}: {_reason(answer)}")

    async def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        call = f"{method} {self._url}{path}"
        try:
            async with self._session.request(
                method, self._url + path, json=body, timeout=self._timeout
            ) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if text else None
        except TimeoutError as error:
            raise ToxiproxyError(f"{call}: no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ToxiproxyError(f"{call}: {error}") from error


def _read(proxy: Any) -> ProxySeen:
    return ProxySeen(_port(proxy["listen"]), proxy["upstream"])


def _port(listen: str) -> int:
    port = listen.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _reason(answer: Any) -> str:
    return str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)
