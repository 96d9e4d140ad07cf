"""A new revision of the model is told to the gateway, as when weights or a prompt template were changed.

What was kept under the revision before must not be given any more. Proven by the gateway's own word; the answers
prove the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from chaos.faults.base import FaultContext, Proof, checked_settings
from chaos.names import require

TARGET: Final = "gateway"


class NewRevision:
    """Changes the model's revision until it is reverted."""

    kind: ClassVar[str] = "new_revision"
    loses_replica: ClassVar[bool] = False
    target = TARGET

    def __init__(self, context: FaultContext, before: str, after: str) -> None:
        self._admin = context.admin
        self._before = before
        self._after = after

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> NewRevision:
        checked_settings(cls.kind, settings, {})
        require("target", target, [TARGET])
        return cls(context, await context.admin.revision(), f"changed-{time.time_ns():x}")

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> NewRevision:
        return cls(context, str(data["before"]), str(data["after"]))

    def undo_data(self) -> dict[str, Any]:
        return {"before": self._before, "after": self._after}

    async def inject(self) -> None:
        await self._admin.set_revision(self._after)

    async def verify(self) -> Proof:
        now = await self._admin.revision()
        return Proof(now == self._after, {"before": self._before, "now": now})

    async def revert(self) -> None:
        if await self._admin.revision() == self._after:
            await self._admin.set_revision(self._before)
