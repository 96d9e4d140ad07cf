"""Everything that a seed decides, drawn before anything runs: what happens never depends on what happened.

So two runs of a seed differ only where the product differs, and a plan can be printed before its run.

The fault ``straggle`` is the duplicate: an attempt that was given up goes on beside its successor, holding its slot and
sending tokens, until its replica notices.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from policies.backoff import FullJitter
from policies.hedging import HedgingSettings
from policies.outlier import OutlierSettings
from policies.parts import ProfileSettings
from policies.priority import Priority
from policies.retry_budget import BudgetSettings

ARRIVALS_S = 18.0
"""Calls arrive from 0 until then; every fault begins before and ends at ``QUIET_FROM_S`` at the latest."""
QUIET_FROM_S = 30.0
TENANTS = ("acme", "globex", "initech")
CLASSES = ("interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """How fast the replicas are; all are alike. Times in seconds."""

    count: int
    slots: int
    prefill_base_s: float
    prefill_s_per_token: float
    step_s: float
    link_s: float
    longest_prompt: int | None
    """Longer ones are answered 400."""

    @property
    def tokens_per_s(self) -> float:
        """Return the decode rate of the healthy fleet with all slots full."""
        return self.count * self.slots / self.step_s


FAULT_KINDS = ("kill", "black_hole", "mute", "deaf", "cut", "abort", "slow", "busy", "failing", "straggle")
FREEZING = ("mute", "deaf", "black_hole")
"""Those that keep a replica's connections open and its tokens back."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One fault on the replicas of those indices, from ``at_s`` for ``for_s``.

    ``detected_s`` is how long discovery takes to drop a killed replica (and to find its successor), ``share``
    the part of attempts that are hit, ``extra_s`` the added latency or the time until a slot is freed.
    """

    kind: str
    places: tuple[int, ...]
    at_s: float
    for_s: float
    detected_s: float
    share: float
    extra_s: float
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call. ``output_tokens`` is how long the answer is, which only the engine knows."""

    n: int
    at_s: float
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    estimate: int
    stream: bool
    idempotent: bool
    priority: Priority
    tenant: str
    service_class: str
    within_s: float | None
    leaves_after_s: float | None
    pause_at: int | None
    """The token after which the client stops reading for ``pause_s``."""
    pause_s: float
    resumable: bool | None
    """None: whoever made the call knows nothing of resuming; False: it refuses."""
    degradable: bool

    @property
    def request_id(self) -> str:
        """Return the call's name in events."""
        return f"c{self.n:03d}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A world, before it begins."""

    seed: int
    replicas: ReplicaPlan
    faults: tuple[FaultPlan, ...]
    calls: tuple[CallPlan, ...]
    knobs: ProfileSettings
    without: tuple[str, ...]
    extra: tuple[str, ...]
    looks: tuple[float, ...]
    """Instants at which the accounts are compared with what is really there."""


def draw(seed: int, policies: tuple[str, ...], optional: tuple[str, ...] = ()) -> Plan:
    """Return the plan of a seed: one in four runs without one of ``policies``, as many with an optional one."""
    rng = random.Random(f"simulation/{seed}")
    replicas = _replicas(rng)
    calls = _calls(rng, replicas)
    until_s = calls[-1].at_s + 1.0
    faults = tuple(_fault(rng, replicas, until_s) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5, 8))))
    knobs = _knobs(rng)
    looks = tuple(sorted(rng.uniform(0.0, QUIET_FROM_S) for _ in range(60)))
    without = (rng.choice(policies),) if rng.random() < 0.25 else ()
    extra = (rng.choice(optional),) if optional and rng.random() < 1 / 4 else ()
    if "timeouts" in without:  # then the deadline alone bounds a call, so each must have one
        calls = tuple(one if one.within_s else replace(one, within_s=30.0) for one in calls)
    return Plan(seed, replicas, faults, calls, knobs, without, extra, looks)


def _replicas(rng: random.Random) -> ReplicaPlan:
    return ReplicaPlan(
        count=rng.choice((1, 2, 3, 3, 3, 4, 5)),
        slots=rng.choice((2, 4, 8)),
        prefill_base_s=rng.uniform(0.005, 0.05),
        prefill_s_per_token=rng.choice((0.00005, 0.0002, 0.0005)),
        step_s=rng.choice((0.02, 0.03, 0.05, 0.08)),
        link_s=rng.choice((0.0005, 0.002, 0.01)),
        longest_prompt=rng.choice((None, None, 1500)),
    )


def _fault(rng: random.Random, replicas: ReplicaPlan, until_s: float) -> FaultPlan:
    at_s = rng.uniform(0.2, until_s)
    return FaultPlan(
        kind=rng.choice(FAULT_KINDS),
        places=tuple(range(replicas.count)) if rng.random() < 0.2 else (rng.randrange(replicas.count),),
        at_s=at_s,
        for_s=min(QUIET_FROM_S - at_s, rng.choice((0.3, 1.0, 3.0, 6.0, 12.0)) * rng.uniform(0.7, 1.3)),
        detected_s=rng.choice((0.05, 0.5, 2.4)),
        share=rng.choice((0.1, 0.3, 0.7, 1.0)),
        extra_s=rng.choice((0.02, 0.1, 0.5, 2.0)),
        retry_after_s=rng.choice((None, 0.2, 1.0)),
    )


def _calls(rng: random.Random, replicas: ReplicaPlan) -> tuple[CallPlan, ...]:
    count = rng.randint(40, 90)
    mean_output = rng.choice((8, 16, 24))
    # The decode rate cannot be offered much more than it has within so few calls, so the arrivals are squeezed.
    load = rng.choice((0.3, 0.6, 0.9, 1.5, 3.0))
    lasts_s = min(ARRIVALS_S, max(2.0, count * mean_output / (load * replicas.tokens_per_s)))
    patience = rng.choice(((None, 5.0, 10.0, 30.0), (10.0, 30.0), (0.3, 1.0, 2.0, 5.0)))
    leavers = rng.choice((0.0, 0.1, 0.4))
    resumable = rng.choice(((None,), (True,), (True, True, True, False), (None, True, False)))
    at_s, calls = 0.0, []
    for n in range(count):
        at_s += rng.expovariate(count / lasts_s)
        max_tokens = max(1, min(64, round(rng.expovariate(1 / mean_output))))
        output_tokens = max_tokens if rng.random() < 0.5 else rng.randint(1, max_tokens)
        long = rng.random() < 0.08
        calls.append(
            CallPlan(
                n=n,
                at_s=min(at_s, ARRIVALS_S),
                prompt_tokens=rng.randint(1000, 3000) if long else rng.randint(20, 300),
                max_tokens=max_tokens,
                output_tokens=output_tokens,
                estimate=max(1, round(max_tokens * rng.uniform(0.4, 1.2))),
                stream=rng.random() < 0.75,
                idempotent=rng.random() < 0.9,
                priority=rng.choice(tuple(Priority)),
                tenant=rng.choice(TENANTS[:2]) if rng.random() < 0.3 else TENANTS[0],
                service_class=rng.choice(CLASSES),
                within_s=rng.choice(patience),
                leaves_after_s=rng.expovariate(1.0) if rng.random() < leavers else None,
                pause_at=rng.randint(1, 10) if rng.random() < 0.05 else None,
                pause_s=rng.choice((0.2, 1.5, 4.0)),
                resumable=rng.choice(resumable),
                degradable=rng.random() < 0.5,
            )
        )
    return tuple(calls)


def _knobs(rng: random.Random) -> ProfileSettings:
    """Return the defaults, or knobs turned so far that their bounds are reached within one short run."""
    if rng.random() < 0.3:
        return ProfileSettings()
    return ProfileSettings(
        max_attempts=rng.choice((1, 2, 3, 4)),
        backoff=FullJitter(base_s=rng.choice((0.02, 0.05, 0.5)), cap_s=rng.choice((1.0, 10.0))),
        budget=_budget(rng),
        outlier=OutlierSettings(
            base_s=rng.choice((1.0, 5.0)), floor_share=rng.choice((0.1, 0.3, 0.5, 1.0)), max_s=20.0
        ),
        hedging=HedgingSettings(quantile=0.8, least_samples=5),
        ttft_objective_s=rng.choice((1.0, 5.0)),
    )


def _budget(rng: random.Random) -> BudgetSettings:
    """Return one that is short of attempts, of tokens, or of neither."""
    short_of = rng.choice(("attempts", "tokens", "both"))
    few = rng.choice((2.0, 4.0, 10.0))
    earned = rng.choice((0.0, 0.0, 0.1, 1.0))
    return BudgetSettings(
        ratio=rng.choice((0.0, 0.1, 0.2)),
        reserve_per_s=1.0 if short_of == "tokens" else earned,
        burst=40.0 if short_of == "tokens" else few,
        reserve_tokens_per_s=500.0 if short_of == "attempts" else 100.0 * earned,
        burst_tokens=40_000.0 if short_of == "attempts" else 150.0 * few,
    )


def floor_of(share: float, known: int) -> int:
    """Return how many of ``known`` replicas must stay in rotation."""
    return min(known, max(1, math.ceil(share * known)))
