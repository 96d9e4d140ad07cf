"""SIGKILL of one whole replica: its container, or its process with its engine.

Nothing is said to anybody: connections end, or hang, as they do when a machine is lost. The revert brings a
replacement: Ray Serve's own restart where the node lives on, a started container where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from chaos.faults.base import FaultContext, Proof, checked_settings
from chaos.faults.victim import victim
from chaos.substrate import ReplicaHandle
from chaos.waiting import until

VERIFY_WITHIN_S = 10.0


class KillReplica:
    """Kills the replica behind a label such as ``replica-1``, or behind a link such as ``replica-1.x7d2``."""

    kind: ClassVar[str] = "kill_replica"
    loses_replica: ClassVar[bool] = True

    def __init__(self, context: FaultContext, replica: ReplicaHandle) -> None:
        self._substrate = context.substrate
        self.replica = replica

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> KillReplica:
        checked_settings(cls.kind, settings, {})
        return cls(context, await victim(context, cls.kind, target, others="survive"))

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> KillReplica:
        return cls(context, ReplicaHandle(**data["replica"]))

    @property
    def target(self) -> str:
        return self.replica.link

    def undo_data(self) -> dict[str, Any]:
        return {"replica": asdict(self.replica)}

    async def inject(self) -> None:
        await self._substrate.kill(self.replica)

    async def verify(self) -> Proof:
        async def gone() -> bool:
            return await self._substrate.is_dead(self.replica)

        dead = await until(gone, VERIFY_WITHIN_S, 0.05)
        return Proof(bool(dead), {"handle": self.replica.handle, "is_dead": bool(dead)})

    async def revert(self) -> None:
        await self._substrate.restore(self.replica)
