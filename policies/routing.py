"""Puts together what chooses a replica and what learns from its attempts, as the active policies say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from policies.balance import Balancer, LeastWork, RoundRobin, full_weight
from policies.dispatch import Dispatch
from policies.fleet import Replica
from policies.isolation import Isolation
from policies.observe import AttemptObserver
from policies.outlier import OutlierDetection
from policies.parts import ProfileSettings, Surroundings
from policies.replica_limits import ReplicaLimits
from policies.slow_start import SlowStart
from policies.stall import StallWatch
from policies.within_limits import WithinLimits


def make_dispatch(
    around: Surroundings,
    knobs: ProfileSettings,
    active: Collection[str],
    observers: Iterable[AttemptObserver] = (),
    limits: ReplicaLimits | None = None,
) -> Dispatch:
    """Return a dispatch with ``ejection``, ``stall_watch``, ``slow_start``, ``least_work`` and ``isolation``.

    With ``limits`` no replica is given more than its own while another has room.
    """
    clock, watching = around.clock, list(observers)
    slow_start: SlowStart | None = None
    if "slow_start" in active:
        slow_start = SlowStart(around.fleet, knobs.slow_start, clock=clock)

    outlier: OutlierDetection | None = None
    if "ejection" in active:
        outlier = OutlierDetection(
            around.fleet,
            clock=clock,
            settings=knobs.outlier,
            rng=around.rng,
            sink=around.sink,
            on_return=_nothing if slow_start is None else slow_start.returned,
        )

    if "stall_watch" in active:
        on_stall, rotation = _unless_alone(around), _all_of(around)
        if outlier is not None:
            on_stall, rotation = outlier.stalled, outlier.rotation
        watching.append(
            StallWatch(knobs.stall, clock=clock, rates=around.rates, on_stall=on_stall, rotation=rotation)
        )

    balancer: Balancer = RoundRobin()
    if "least_work" in active:
        weight = full_weight if slow_start is None else slow_start.weight
        balancer = LeastWork(around.ledger, around.rates, weight=weight)
        if "isolation" in active:
            balancer = isolation = Isolation(balancer, knobs.isolation)
            watching.append(isolation)
    if limits is not None:
        balancer = WithinLimits(balancer, limits)

    return Dispatch(
        around.fleet,
        balancer,
        ledger=around.ledger,
        rates=around.rates,
        clock=clock,
        sink=around.sink,
        outlier=outlier,
        observers=watching,
        retry_after_s=knobs.no_replica_retry_after_s,
        rng=around.rng,
    )


def _unless_alone(around: Surroundings) -> Callable[[Replica, str], bool]:
    """Where nothing is ejected: a stalled replica's attempts are ended if there is another to go to."""
    return lambda replica, reason: len(around.fleet.replicas) > 1


def _all_of(around: Surroundings) -> Callable[[], Sequence[Replica]]:
    return lambda: around.fleet.replicas


def _nothing(_: Replica) -> None:
    pass
