"""SIGKILL of the gateway: its container, or its process. Open calls end without a word, and jobs stay where they are.

The revert starts it again with the same settings and gives it the profile and the model's revision that it had: what
an experiment has set lives in the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.names import require
from chaos.probe import answered_after_s
from chaos.substrate import GatewayHandle
from chaos.waiting import until

VERIFY_WITHIN_S = 5.0
SILENT_WITHIN_S = 1.0


class KillGateway:
    """Kills a gateway by its name; ``gateway`` is the first."""

    kind: ClassVar[str] = "kill_gateway"
    loses_replica: ClassVar[bool] = False

    def __init__(
        self,
        context: FaultContext,
        gateway: GatewayHandle,
        profile: str,
        without: tuple[str, ...],
        revision: str,
        asked: str = "",
    ) -> None:
        self._context = context
        self._profile = profile
        self._without = without
        self._revision = revision
        self._asked = asked
        self.gateway = gateway

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> KillGateway:
        checked_settings(cls.kind, settings, {})
        found = await context.substrate.gateways()
        if not found:
            raise FaultError("kill_gateway: no gateway runs")
        named = {"gateway": found[0], **{one.name: one for one in found}}
        gateway = named[require("gateway", target, named)]
        profile, without = await context.admin.profile()
        return cls(context, gateway, profile, without, await context.admin.revision(), asked=target)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> KillGateway:
        gateway = GatewayHandle(**data["gateway"])
        return cls(context, gateway, data["profile"], tuple(data["without"]), data["revision"])

    @property
    def target(self) -> str:
        """The name that was asked for: a plan knows ``gateway``, and not what its container is called."""
        return self._asked or self.gateway.name

    def undo_data(self) -> dict[str, Any]:
        had = {"profile": self._profile, "without": list(self._without), "revision": self._revision}
        return {"gateway": asdict(self.gateway), **had}

    async def inject(self) -> None:
        await self._context.substrate.kill_gateway(self.gateway)

    async def verify(self) -> Proof:
        async def gone() -> bool:
            return await self._context.substrate.gateway_is_dead(self.gateway)

        dead = bool(await until(gone, VERIFY_WITHIN_S, 0.05))
        url = f"{self._context.endpoints.admin_url}/healthz"
        answered_s = await answered_after_s(url, SILENT_WITHIN_S)
        detail = {"handle": self.gateway.handle, "is_dead": dead, "answered_s": answered_s}
        return Proof(dead and answered_s is None, detail)

    async def revert(self) -> None:
        substrate = self._context.substrate
        if await substrate.gateway_is_dead(self.gateway):
            await substrate.start_gateway(self.gateway)
            await self._context.admin.set_profile(self._profile, self._without)
            if self._revision:
                await self._context.admin.set_revision(self._revision)
