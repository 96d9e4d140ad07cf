"""A burst: more arrivals of the scenario's mix while it is in force.

The extra calls stand in the plan (:mod:`chaos.load.surge` says why); injecting opens the gate behind which the load
client holds them, reverting closes it. Nothing of it outlives the process that sends the load, so what a run that
died left in the undo log needs no revert. Proven at the gateway, which counts arrivals by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from chaos.admin import Admin, AdminError
from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.load.surge import BURST, SETTINGS, Surge
from chaos.names import require
from chaos.scrape import declares, samples, total
from chaos.waiting import until
from cluster.public import LINK_CLIENT, METRIC_CALLS, METRIC_IN_FLIGHT

VERIFY_WITHIN_S = 5.0
LOOK_AFTER_S = 1.0
"""Shorter counts say little: arrivals come at random."""
SHARE_SEEN = 0.5
"""So much of the extra rate must be seen at the gateway, averaged since the injection."""


class Burst:
    """Multiplies the rate of arrivals by ``times`` on link ``client``."""

    kind: ClassVar[str] = BURST
    loses_replica: ClassVar[bool] = False

    def __init__(self, admin: Admin, surge: Surge, target: str, times: float) -> None:
        self.target = target
        self._admin = admin
        self._surge = surge
        self._times = times
        self._arrived = 0.0
        self._since = 0.0

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> Burst:
        times = checked_settings(cls.kind, settings, SETTINGS)["times"]
        require("link", target, [LINK_CLIENT, *(link.label for link in await context.admin.links())])
        if target != LINK_CLIENT:
            raise FaultError(f"burst: the target is {target!r}; arrivals come over link {LINK_CLIENT!r} only")
        if not times > 1:
            raise FaultError(f"burst: times is {times:g}, it must be above 1")
        return cls(context.admin, context.surge, target, times)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> Burst:
        return cls(context.admin, Surge(), str(data["target"]), float(data["times"]))

    def undo_data(self) -> dict[str, Any]:
        return {"target": self.target, "times": self._times}

    async def inject(self) -> None:
        self._arrived = await _arrived(self._admin)
        self._since = time.monotonic()
        self._surge.open()

    async def verify(self) -> Proof:
        surge = self._surge
        wanted = surge.rate_per_s + SHARE_SEEN * surge.extra_per_s
        detail: dict[str, Any] = {"wanted_per_s": round(wanted, 3), "rate_per_s": round(surge.rate_per_s, 3)}

        async def risen() -> bool:
            elapsed_s = time.monotonic() - self._since
            if elapsed_s < LOOK_AFTER_S:
                return False
            detail["seen_per_s"] = round((await _arrived(self._admin) - self._arrived) / elapsed_s, 3)
            return bool(detail["seen_per_s"] >= wanted)

        ok = await until(risen, VERIFY_WITHIN_S, LOOK_AFTER_S / 4) if surge.extra_per_s > 0 else False
        return Proof(bool(ok) and surge.sent > 0, {**detail, "extra_sent": surge.sent})

    async def revert(self) -> None:
        self._surge.close()


async def _arrived(admin: Admin) -> float:
    """Return how many calls have arrived at the gateway since it started: those that ended and those that did not."""
    page = await admin.text(f"{admin.endpoints.admin_url}/metrics")
    found = samples(page, {METRIC_CALLS, METRIC_IN_FLIGHT})
    ended, open_now = total(found, METRIC_CALLS), total(found, METRIC_IN_FLIGHT)
    if open_now is None or (ended is None and not declares(page, METRIC_CALLS)):
        raise AdminError(f"the gateway's page of metrics lacks {METRIC_CALLS} or {METRIC_IN_FLIGHT}")
    return (ended or 0.0) + open_now
