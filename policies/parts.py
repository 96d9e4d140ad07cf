"""What the policies of a pipeline are built from: their surroundings, their knobs, and the shape of a stage."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies.admission import Admission, AdmissionSettings
from policies.backoff import Backoff, FullJitter
from policies.breaker import BreakerSettings
from policies.call import Handler, Policy
from policies.clock import Clock, SystemClock
from policies.degradation import Entitled, everyone
from policies.events import EventSink, NullSink
from policies.fleet import Fleet, Replica
from policies.hedging import HedgingSettings
from policies.isolation import IsolationSettings
from policies.ladder import ClassRungs, LadderSettings
from policies.limits import LimitSettings
from policies.outlier import OutlierSettings
from policies.rates import Rates
from policies.resume import ResumeSettings
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.slow_start import SlowStartSettings
from policies.stall import StallSettings
from policies.throttling import ThrottlingSettings
from policies.timeouts import TimeoutSettings
from policies.work import WorkLedger


@dataclass(frozen=True, slots=True)
class EagerSettings:
    """Knobs of the profile ``retry-only``: attempts, the wait between them, and the time-out of a whole one."""

    max_attempts: int = 5
    wait_s: float = 0.0
    attempt_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}: at least 1 attempt is needed")
        if not (self.wait_s >= 0 and self.attempt_s > 0):
            raise ValueError(f"wait_s={self.wait_s} must be at least 0 and attempt_s={self.attempt_s} over 0")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Every knob of every policy; durations in seconds."""

    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    max_attempts: int = 3
    backoff: Backoff = field(default_factory=FullJitter)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    resume: ResumeSettings = field(default_factory=ResumeSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    outlier: OutlierSettings = field(default_factory=OutlierSettings)
    stall: StallSettings = field(default_factory=StallSettings)
    slow_start: SlowStartSettings = field(default_factory=SlowStartSettings)
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    tool_breaker: BreakerSettings = field(default_factory=lambda: BreakerSettings(max_open_s=8.0))
    """A probe of the tool costs one call its deadline, so it may come often."""
    hedging: HedgingSettings = field(default_factory=HedgingSettings)
    throttling: ThrottlingSettings = field(default_factory=ThrottlingSettings)
    eager: EagerSettings = field(default_factory=EagerSettings)
    ladder: LadderSettings = field(default_factory=LadderSettings)
    classes: Mapping[str, ClassRungs] = field(default_factory=dict)
    """Limits on the ladder by class of call; a class that is not named here goes by priority."""
    ttft_objective_s: float = 5.0
    tool_deadline_s: float = 1.0
    default_deadline_s: float = 60.0
    no_replica_retry_after_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("ttft_objective_s", "tool_deadline_s", "default_deadline_s", "no_replica_retry_after_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pipeline shares with its successors: the fleet, the accounts of work, and the learned rates.

    ``entitled`` says who may be answered at which rung of the ladder, ``rung_handlers`` who answers at a rung in
    place of this fleet.
    """

    fleet: Fleet
    ledger: WorkLedger
    rates: Rates
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)
    sink: EventSink = field(default_factory=NullSink)
    entitled: Entitled = everyone
    rung_handlers: Mapping[str, Handler[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the maker of a policy can build it from."""

    around: Surroundings
    knobs: ProfileSettings
    active: tuple[str, ...]
    """Names of the policies that are on."""
    rotation: Callable[[], Sequence[Replica]]
    budget: RetryBudget | None = None
    """What everything that repeats work is paid from; None where ``retry_budget`` is off."""
    admission: Admission | None = None
    """The limiter, whose queue others look at; None where ``admission`` is off."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A policy with a place in the pipeline: its name, what makes it, and in one line what it protects from."""

    name: str
    make: Callable[[Parts], Policy]
    protects: str
