"""The one replica that a fault may hit, and the others that must be left."""

from __future__ import annotations

from typing import Final

from chaos.faults.base import BlastRadius, FaultContext
from chaos.names import require
from chaos.substrate import ReplicaHandle

SURVIVORS: Final = 1
"""So many replicas are always left alone."""


async def victim(context: FaultContext, kind: str, target: str, *, others: str) -> ReplicaHandle:
    """Return the live replica with that label or link; ``others`` says what must become of the rest ("survive").

    Raises:
        UnknownName: no such replica.
        BlastRadius: too few would be left.
    """
    alive = await context.substrate.replicas()
    require("replica", target, [name for r in alive for name in (r.label, r.link)])
    if len(alive) <= SURVIVORS:
        raise BlastRadius(
            f"{kind} on {target!r} was refused: {len(alive)} replica is live and at least "
            f"{SURVIVORS} must {others}; start more replicas"
        )
    return next(r for r in alive if target in (r.label, r.link))
