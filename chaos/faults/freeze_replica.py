"""SIGSTOP of one replica's engine: its HTTP server answers, its health check is green, and no token moves.

What a deadlock, a hung kernel or a driver that waits for ever looks like from outside. Nothing ends and no connection
breaks; only who watches tokens can tell. Proven over the replica's own link: the health page answers while a small
completion, which gave its token before the fault, gives none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import aiohttp

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.faults.victim import victim
from chaos.probe import answered_after_s
from chaos.substrate import ReplicaHandle

BEFORE_WITHIN_S = 8.0
"""The probe must give its token within this before the fault: replicas may be full then."""
SILENT_S = 2.0
"""So long the probe must give nothing during the fault; a paced engine step takes 0.04 s."""
HEALTH_WITHIN_S = 1.5


class FreezeReplica:
    """Stops the engine behind a label such as ``replica-1``, or behind a link such as ``replica-1.x7d2``."""

    kind: ClassVar[str] = "freeze_replica"
    loses_replica: ClassVar[bool] = False

    def __init__(
        self, context: FaultContext, replica: ReplicaHandle, url: str, model: str, before_s: float
    ) -> None:
        self._substrate = context.substrate
        self._url = url
        self._model = model
        self._before_s = before_s
        self.replica = replica

    @classmethod
    async def resolve(
        cls, context: FaultContext, target: str, settings: Mapping[str, float]
    ) -> FreezeReplica:
        checked_settings(cls.kind, settings, {})
        replica = await victim(context, cls.kind, target, others="be left")
        link = next((link for link in await context.admin.links() if link.name == replica.link), None)
        if link is None:
            raise FaultError(f"freeze_replica: {replica.link} has just lost its link; try again")
        url = f"http://{await context.substrate.reachable(link.listen)}"
        model = await context.admin.model()
        before_s = await _token_after_s(url, model, BEFORE_WITHIN_S)
        if before_s is None:
            raise FaultError(
                f"freeze_replica: {replica.link} gives no token within {BEFORE_WITHIN_S:g} s before the fault"
            )
        return cls(context, replica, url, model, before_s)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> FreezeReplica:
        return cls(context, ReplicaHandle(**data["replica"]), "", "", 0.0)

    @property
    def target(self) -> str:
        return self.replica.link

    def undo_data(self) -> dict[str, Any]:
        return {"replica": asdict(self.replica)}

    async def inject(self) -> None:
        await self._substrate.freeze(self.replica)

    async def verify(self) -> Proof:
        token_s, health_s = await asyncio.gather(
            _token_after_s(self._url, self._model, SILENT_S),
            answered_after_s(f"{self._url}/health", HEALTH_WITHIN_S, status=200),
        )
        frozen = await self._substrate.is_frozen(self.replica)
        detail = {
            "engine_stopped": frozen,
            "health_answered_s": None if health_s is None else round(health_s, 4),
            "token_before_s": round(self._before_s, 4),
            "no_token_for_s": SILENT_S if token_s is None else None,
        }
        return Proof(frozen and health_s is not None and token_s is None, detail)

    async def revert(self) -> None:
        await self._substrate.thaw(self.replica)


async def _token_after_s(url: str, model: str, within_s: float) -> float | None:
    """Return after how long a completion of one token was there, or None when none came in time."""
    began = time.monotonic()
    body = {"model": model, "prompt": "probe", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    # Streamed: a client that leaves a streamed request frees the engine.
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/completions", json={**body, "stream": True}) as response,
        ):
            async for line in response.content:
                if line.startswith(b"data: {") and b'"choices"' in line:
                    return time.monotonic() - began
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    return None
