"""Latency on one link: a Toxiproxy toxic that delays what comes back over it.

A constant latency moves the time to first token and not the gaps between tokens; the handshake is never delayed.
Verified twice: the proxy really has the toxic with these attributes, and a request over the link really takes
that long. The second matters because Toxiproxy ignores what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.links import LinkFaults
from chaos.names import require
from chaos.probe import answered_after_s
from chaos.toxics import latency

TOXIC_NAME = "brownout-latency"
KNOWN = {"latency_s": 1.0, "jitter_s": 0.0}
MOST_S = 60.0
SEEN_SHARE = 0.8
"""Share of the latency by which a request must take longer than before, to count as proof."""


class Latency:
    """Delays answers on a link by ``latency_s`` plus or minus ``jitter_s`` seconds."""

    kind: ClassVar[str] = "latency"
    loses_replica: ClassVar[bool] = False

    def __init__(
        self,
        context: FaultContext,
        proxy: str,
        probe_url: str,
        settings: Mapping[str, float],
        before_s: float,
    ) -> None:
        self._context = context
        self._probe_url = probe_url
        self._settings = settings
        self._before_s = before_s
        self._toxic = latency(settings["latency_s"], settings["jitter_s"], name=TOXIC_NAME)
        self.target = proxy

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> Latency:
        chosen = checked_settings(cls.kind, settings, KNOWN)
        if not 0 < chosen["latency_s"] <= MOST_S or not 0 <= chosen["jitter_s"] <= chosen["latency_s"]:
            raise FaultError(
                f"latency: latency_s is {chosen['latency_s']:g} and jitter_s {chosen['jitter_s']:g}; "
                f"latency must be above 0 and at most {MOST_S:g}, jitter at most the latency"
            )
        links = await context.admin.links()
        require("link", target, [name for link in links for name in (link.label, link.name)])
        link = next(link for link in links if target in (link.label, link.name))
        address = await context.substrate.reachable(link.listen)
        probe_url = f"http://{address}/health"
        before_s = await answered_after_s(probe_url, 5.0)
        if before_s is None:
            raise FaultError(f"latency: link {link.name!r} does not answer at {probe_url} before the fault")
        return cls(context, link.name, probe_url, chosen, before_s)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> Latency:
        return cls(context, str(data["proxy"]), "", dict(data["settings"]), 0.0)

    def undo_data(self) -> dict[str, Any]:
        return {"proxy": self.target, "settings": dict(self._settings)}

    def _proxies(self) -> LinkFaults:
        return LinkFaults(self._context.endpoints.toxiproxy_url)

    async def inject(self) -> None:
        async with self._proxies() as proxies:
            await proxies.add(self.target, self._toxic)

    async def verify(self) -> Proof:
        async with self._proxies() as proxies:
            has_toxic = await proxies.verify(self.target, self._toxic)
        latency_s, jitter_s = self._settings["latency_s"], self._settings["jitter_s"]
        least_s = (latency_s - jitter_s) * SEEN_SHARE
        during_s = await answered_after_s(self._probe_url, latency_s * 3 + 5)
        slow = during_s is not None and during_s - self._before_s >= least_s
        detail = {
            "has_toxic": has_toxic,
            "probe": self._probe_url,
            "before_s": round(self._before_s, 4),
            "during_s": None if during_s is None else round(during_s, 4),
            "longer_by_at_least_s": round(least_s, 4),
        }
        return Proof(has_toxic and slow, detail)

    async def revert(self) -> None:
        async with self._proxies() as proxies:
            await proxies.remove(self.target, TOXIC_NAME)
