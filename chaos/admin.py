"""The gateway's admin API and the links service, as this package uses them.

Everything else reaches the cluster through the same door as any client. Answers are checked here, once, so
that a field that is missing is named and not met as a ``KeyError`` in the middle of a run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from chaos.substrate import Endpoints, SubstrateError
from cluster.public import replica_label

REQUEST_TIMEOUT_S = 5.0


class AdminError(SubstrateError):
    """The gateway or the links service did not answer as it should; the text names the URL and what came."""


@dataclass(frozen=True, slots=True)
class Link:
    """One link, as the links service lists it. ``listen`` is where the gateway reaches it, as host:port."""

    name: str
    label: str
    kind: str
    listen: str
    upstream: str


@dataclass(frozen=True, slots=True)
class InFlight:
    """What the gateway holds at a moment: open calls, and ``(request_id, replica, phase)`` of open attempts."""

    calls: int
    attempts: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The answer to a wait: what the replica behind ``replica`` (a link) held at ``at``."""

    replica: str
    at: float
    awaiting: tuple[str, ...]
    streaming: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Gateway events after a sequence number; ``dropped`` of them were lost to the ring's bound."""

    events: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    last: int = 0
    dropped: int = 0


class Admin:
    """Async client of both services; one pooled session, every request bounded."""

    def __init__(self, endpoints: Endpoints, api_key: str = "") -> None:
        self.endpoints = endpoints
        self._api_key = api_key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Admin:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _request(
        self, method: str, url: str, timeout_s: float = REQUEST_TIMEOUT_S, **options: Any
    ) -> tuple[int, str]:
        if self._session is None:
            raise RuntimeError("Admin is used outside 'async with'")
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, url, timeout=timeout, **options) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise AdminError(f"{method} {url}: {reason}; 'brownout status' tells what runs") from error

    async def _json(self, method: str, url: str, **options: Any) -> Any:
        status, text = await self._request(method, url, **options)
        if status >= 400:
            raise AdminError(f"{method} {url}: answered {status}: {text[:300]}")
        return _decoded(url, text)

    async def text(self, url: str, timeout_s: float = 2.0) -> str:
        """Return the body of a page, e.g. of metrics."""
        status, text = await self._request("GET", url, timeout_s)
        if status >= 400:
            raise AdminError(f"GET {url}: answered {status}: {text[:200]}")
        return text

    async def profile(self) -> tuple[str, tuple[str, ...]]:
        """Return the gateway's profile and the policies that are switched off in it."""
        url = f"{self.endpoints.admin_url}/admin/profile"
        raw = _fields(url, await self._json("GET", url), "profile")
        return str(raw["profile"]), tuple(raw.get("without") or ())

    async def set_profile(self, profile: str, without: Sequence[str] = ()) -> None:
        """Swap in a fresh pipeline; calls in flight end on the old one."""
        body = {"profile": profile, "without": list(without)}
        await self._json("PUT", f"{self.endpoints.admin_url}/admin/profile", json=body)

    async def revision(self) -> str:
        """Return the revision of the model under which answers are kept; empty where none are."""
        url = f"{self.endpoints.admin_url}/admin/revision"
        status, text = await self._request("GET", url)
        if status in (404, 409):
            return ""
        if status >= 400:
            raise AdminError(f"GET {url}: answered {status}: {text[:300]}")
        return str(_fields(url, _decoded(url, text), "model_revision")["model_revision"])

    async def set_revision(self, revision: str) -> None:
        """Say that the model is another one from now on: what was kept before is not given any more."""
        await self._json(
            "PUT", f"{self.endpoints.admin_url}/admin/revision", json={"model_revision": revision}
        )

    async def in_flight(self) -> InFlight:
        """Return what the gateway holds now."""
        url = f"{self.endpoints.admin_url}/admin/inflight"
        raw = _fields(url, await self._json("GET", url), "calls", "attempts")
        attempts = tuple(
            (str(a["request_id"]), str(a["replica"]), str(a.get("phase", ""))) for a in raw["attempts"]
        )
        return InFlight(int(raw["calls"]), attempts)

    async def wait(self, replica: str, when: Mapping[str, int], timeout_s: float) -> Held | None:
        """Return the instant at which the replica holds at least ``when`` calls; None when it never did.

        ``when`` has the keys ``streaming`` and ``awaiting`` (calls).
        """
        url = f"{self.endpoints.admin_url}/admin/wait"
        query = {"replica": replica, "timeout_s": f"{timeout_s:g}", **{k: str(v) for k, v in when.items()}}
        status, text = await self._request("GET", url, timeout_s + REQUEST_TIMEOUT_S, params=query)
        if status == 408:
            return None
        if status >= 400:
            raise AdminError(f"GET {url}: answered {status}: {text[:300]}")
        raw = _fields(url, _decoded(url, text), "replica", "at")
        held = [tuple(str(i) for i in raw.get(key) or ()) for key in ("awaiting", "streaming")]
        return Held(str(raw["replica"]), float(raw["at"]), held[0], held[1])

    async def events(self, after: int) -> EventPage:
        """Return the gateway's events with a sequence number above ``after``."""
        url = f"{self.endpoints.admin_url}/admin/events"
        raw = _fields(url, await self._json("GET", url, params={"after": str(after)}), "events", "last")
        return EventPage(tuple(raw["events"]), int(raw["last"]), int(raw.get("dropped") or 0))

    async def links(self) -> list[Link]:
        """Return the links that exist now, ordered by name."""
        url = f"{self.endpoints.links_url}/links"
        raw = _fields(url, await self._json("GET", url), "links")
        found = [
            Link(
                str(link["name"]),
                str(link.get("label") or replica_label(link["name"])),
                str(link["kind"]),
                str(link.get("listen", "")),
                str(link.get("upstream", "")),
            )
            for link in raw["links"]
        ]
        return sorted(found, key=lambda link: link.name)

    async def replica_links(self) -> list[Link]:
        """Return the links of the replicas that run now."""
        return [link for link in await self.links() if link.kind == "replica"]

    async def model(self) -> str:
        """Return the name of the first model that the service offers."""
        url = f"{self.endpoints.base_url}/v1/models"
        headers = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        raw = _fields(url, await self._json("GET", url, headers=headers), "data")
        if not raw["data"]:
            raise AdminError(f"GET {url}: offers no model; its replicas are not ready")
        return str(raw["data"][0]["id"])


def _decoded(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise AdminError(f"{url}: not JSON: {text[:200]!r}") from error


def _fields(url: str, raw: Any, *names: str) -> dict[str, Any]:
    missing = [name for name in names if not isinstance(raw, dict) or name not in raw]
    if missing:
        raise AdminError(f"{url}: the answer lacks {', '.join(missing)}: {str(raw)[:200]}")
    return dict(raw)
