"""Does nothing, with every step of a fault: the template for a new one, and a way to try a scenario's phases.

To add a fault: copy this file, fill in the steps, and add one line to ``FAULTS`` in ``chaos/faults/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chaos.faults.base import FaultContext, Proof, checked_settings
from chaos.names import require


class Noop:
    """The fault that leaves everything as it is."""

    kind: ClassVar[str] = "noop"
    loses_replica: ClassVar[bool] = False

    def __init__(self, target: str) -> None:
        self.target = target

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> Noop:
        checked_settings(cls.kind, settings, {})
        links = await context.admin.links()
        require("link", target, [name for link in links for name in (link.label, link.name)])
        return cls(next(link.name for link in links if target in (link.label, link.name)))

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> Noop:
        return cls(str(data["target"]))

    def undo_data(self) -> dict[str, Any]:
        return {"target": self.target}

    async def inject(self) -> None:
        return

    async def verify(self) -> Proof:
        return Proof(True, {"changed": "nothing, as intended"})

    async def revert(self) -> None:
        return
