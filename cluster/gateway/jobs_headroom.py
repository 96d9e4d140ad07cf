"""Whether there is room for a job now: only what no caller waits for, with some left for the next one who comes."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.gateway.service import Gateway


@dataclass(frozen=True, slots=True)
class Spare:
    """How much is left to callers. ``slots`` is the share of the permits that jobs leave free, ``headroom`` that of
    the capacity: more than the ladder's threshold for going up again, so that jobs never hold it down."""

    slots: float = 0.25
    headroom: float = 0.3

    def __post_init__(self) -> None:
        for name in ("slots", "headroom"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0 and less than 1")


def has_room(gateway: Gateway, spare: Spare, begun: int = 0) -> bool:
    """Tell whether one more job may be begun. ``begun`` are those whose call is not among the gateway's yet."""
    live, pipeline = gateway.live_replicas(), gateway.pipeline
    if live == 0 or gateway.draining or someone_waits(gateway):
        return False
    if pipeline.ladder is not None and pipeline.ladder.look() > 0:
        return False
    if gateway.rates.headroom(live) <= spare.headroom:
        return False
    admission = pipeline.admission
    limit = float(live * gateway.rates.slots) if admission is None else admission.limit
    taken = len(gateway.calls) + begun
    if admission is not None:
        taken = max(taken, admission.in_use())
    return taken + 1 <= max(1.0, limit * (1.0 - spare.slots))


def someone_waits(gateway: Gateway) -> bool:
    """Tell whether calls wait for a permit."""
    admission = gateway.pipeline.admission
    return admission is not None and admission.queued() > 0
