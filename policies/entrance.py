"""Puts together the limiter of a fleet: its limits, its queue, and what it knows of rates and work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.admission import Admission
from policies.fleet import Replica
from policies.parts import ProfileSettings, Surroundings
from policies.replica_limits import ReplicaLimits
from policies.work import Backlog


def make_limits(around: Surroundings, knobs: ProfileSettings) -> ReplicaLimits:
    """Return the adaptive limits of the fleet; they learn once they observe attempts, and stand still until then."""
    return ReplicaLimits(
        around.fleet, around.rates, clock=around.clock, settings=knobs.limits, sink=around.sink
    )


def make_admission(
    around: Surroundings,
    knobs: ProfileSettings,
    rotation: Callable[[], Sequence[Replica]],
    limits: ReplicaLimits,
) -> Admission:
    """Return the limiter that lets in what the replicas in rotation can do at once."""

    def drain_s(queued: Backlog) -> float:
        return around.rates.drain_s(queued + around.ledger.total.backlog(), len(rotation()))

    admission = Admission(
        lambda: limits.total(rotation()),
        knobs.ttft_objective_s,
        settings=knobs.admission,
        live=lambda: len(rotation()),
        unloaded_ttft_s=around.rates.unloaded_ttft_s,
        drain_s=drain_s,
        clock=around.clock,
        rng=around.rng,
        sink=around.sink,
    )
    limits.changed = admission.poke
    return admission
