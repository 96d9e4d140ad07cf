"""The Toxiproxy side of network faults: put a toxic on a link, prove that it is there, take it off again.

Every call has a timeout, which the common Python client lacks, and every answer is compared with what was asked
for, because the server takes a misspelt attribute in silence.

``/reset`` and ``/populate`` are left out on purpose: they touch links that this fault does not own, and with the
Go server both wait for a link whose upstream does not answer.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

import aiohttp

from chaos.toxics import Toxic


class LinkFaultError(RuntimeError):
    """A toxic could not be put on a link, read or taken off; the text says what to do."""


class LinkProxyUnreachableError(LinkFaultError):
    """The link proxy's API did not answer in time, or not at all."""


class UnknownLinkError(LinkFaultError):
    """The link proxy has no link of that name."""


class ToxicExistsError(LinkFaultError):
    """The link already has a toxic of that name."""


class _UnknownToxicError(LinkFaultError):
    """The link has no toxic of that name."""


class LinkFaults:
    """Client of one link proxy's HTTP API. Use as an async context manager.

    Every method raises LinkProxyUnreachableError when the API does not answer within ``timeout_s``, and
    UnknownLinkError when the link is not there, unless its docstring says otherwise.
    """

    def __init__(self, url: str, *, timeout_s: float = 3.0) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def links(self) -> dict[str, bool]:
        """Return all links by name; the value tells whether the link is enabled."""
        answer = await self._ask("GET", "/proxies")
        return {name: bool(proxy["enabled"]) for name, proxy in answer.items()}

    async def toxics(self, link: str) -> tuple[Toxic, ...]:
        """Return what is in force on a link, as the server tells it."""
        found = await self._ask("GET", f"/proxies/{link}/toxics", link=link)
        return tuple(Toxic.from_wire(raw) for raw in found)

    async def add(self, link: str, toxic: Toxic) -> Toxic:
        """Put a toxic on a link and return it as the server took it.

        Raises:
            InvalidToxicError: the server would misunderstand it in silence; nothing was sent.
            ToxicExistsError: the link has one of that name.
            LinkFaultError: the server took something else than what was asked for; it is taken off again.
        """
        body = toxic.checked().to_wire()
        taken = Toxic.from_wire(await self._ask("POST", f"/proxies/{link}/toxics", body, link=link))
        if not toxic.is_met_by(taken):
            await self.remove(link, toxic.name)
            raise LinkFaultError(f"link {link!r}: asked for {toxic}, but the link proxy took {taken}")
        return taken

    async def remove(self, link: str, name: str) -> bool:
        """Take a toxic off; False when it, or its link, was not there. Safe twice."""
        try:
            await self._ask("DELETE", f"/proxies/{link}/toxics/{name}", link=link)
        except (UnknownLinkError, _UnknownToxicError):
            return False
        return True

    async def verify(self, link: str, toxic: Toxic) -> bool:
        """Tell whether the link is there, enabled, and has that toxic with those very attributes now."""
        try:
            proxy = await self._ask("GET", f"/proxies/{link}", link=link)
        except UnknownLinkError:
            return False
        return bool(proxy["enabled"]) and any(
            toxic.is_met_by(Toxic.from_wire(raw)) for raw in proxy["toxics"]
        )

    async def set_enabled(self, link: str, enabled: bool) -> None:
        """Cut a link (live connections close, new ones are refused) or mend it. Safe twice."""
        await self._ask("PATCH", f"/proxies/{link}", {"enabled": enabled}, link=link)

    async def _ask(self, method: str, path: str, body: object = None, *, link: str = "") -> Any:
        if self._session is None:
            raise LinkFaultError("LinkFaults is used outside its 'async with' block")
        call = f"{method} {self._url}{path}"
        try:
            async with self._session.request(method, self._url + path, json=body) as response:
                status, text = response.status, await response.text()
        except TimeoutError as error:
            raise LinkProxyUnreachableError(
                f"{call}: no answer within {self._timeout_s:g} s; Toxiproxy holds up the updates of a link whose "
                "upstream does not answer"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LinkProxyUnreachableError(f"{call}: {error}; is the link proxy running?") from error
        if status < 300:
            return json.loads(text) if text else None
        match _reason(text):
            case "proxy not found":
                raise UnknownLinkError(f"the link proxy at {self._url} has no link {link!r}")
            case "toxic not found":
                raise _UnknownToxicError(f"{call}: no such toxic")
            case "toxic already exists":
                raise ToxicExistsError(f"link {link!r} already has a toxic of that name; take it off first")
            case reason:
                raise LinkFaultError(f"{call}: status {status}: {reason}")


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or "(no text)"
