"""The tool does what it is asked, and its answer is lost: the connection ends where the answer should be.

The most awkward failure that a caller can meet, because asking again may do it twice. Every method loses its answers:
who asks what became of a transfer is not told either, so that nobody can know before this is over. Proven with a
transfer of our own: its answer is lost and its effect stands in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.names import require
from chaos.tool import AnswerLost, Tool
from cluster.public import LINK_TOOL

FAULTS: Final = {"lose_answer": True}


class ToolLoseAnswer:
    """Loses the tool's answers, but not what it does."""

    kind: ClassVar[str] = "tool_lose_answer"
    loses_replica: ClassVar[bool] = False
    target = LINK_TOOL

    def __init__(self, context: FaultContext) -> None:
        self._context = context

    @classmethod
    async def resolve(
        cls, context: FaultContext, target: str, settings: Mapping[str, float]
    ) -> ToolLoseAnswer:
        checked_settings(cls.kind, settings, {})
        require("target", target, [LINK_TOOL])
        found = cls(context)
        async with await found._tool() as tool:
            before = await tool.faults()
        if before.get("lose_answer"):
            raise FaultError("tool_lose_answer: the tool loses its answers already; 'brownout heal' mends it")
        return found

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> ToolLoseAnswer:
        return cls(context)

    def undo_data(self) -> dict[str, Any]:
        return {}

    async def inject(self) -> None:
        async with await self._tool() as tool:
            await tool.set_faults(FAULTS)

    async def verify(self) -> Proof:
        key = f"probe-{time.time_ns():x}"
        async with await self._tool() as tool:
            lost = False
            before = len(await tool.effects())
            try:
                await tool.transfer(key, key)
            except AnswerLost:
                lost = True
            done = sum(1 for effect in await tool.effects(before) if effect.key == key)
        return Proof(lost and done == 1, {"answer_lost": lost, "effects": done})

    async def revert(self) -> None:
        async with await self._tool() as tool:
            await tool.reset_faults()

    async def _tool(self) -> Tool:
        return await Tool.of(self._context.admin, self._context.substrate)
