"""What an experiment is: frozen data, so that a scenario can be read, compared and printed.

A scenario (``chaos/scenarios/*.py``) is one :class:`Experiment`. Nothing here talks to a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chaos.names import require
from chaos.slis import STATISTICS

GOODPUT: Final = "goodput"


@dataclass(frozen=True, slots=True)
class Arm:
    """One pass over the same arrivals. ``fault`` says whether the scenario's faults are injected."""

    name: str
    profile: str
    fault: bool
    without: tuple[str, ...] = ()


CONTROL = Arm("control", "resilient", fault=False)
NAIVE = Arm("naive", "naive", fault=True)
RESILIENT = Arm("resilient", "resilient", fault=True)
DEFAULT_ARMS = (CONTROL, NAIVE, RESILIENT)


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop Poisson arrivals of one kind of call.

    ``share`` is the offered load as a share of the capacity (calls/s) that calibration measured with
    ``of_replicas_lost`` replicas fewer than all. Lengths are in tokens and are drawn uniformly from the
    (low, high) pairs. ``tool`` asks for a read call to the tool before generation, optional to the answer.
    """

    share: float
    of_replicas_lost: int = 0
    prompt_tokens: tuple[int, int] = (120, 180)
    output_tokens: tuple[int, int] = (14, 22)
    stream_share: float = 0.8
    tool: bool = False
    client_deadline_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Phases:
    """Length of each phase in seconds; ``hold`` is the time between the fault and its revert."""

    warm_up_s: float = 3.0
    steady_s: float = 5.0
    hold_s: float = 10.0
    recovery_s: float = 5.0


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One fault of a scenario.

    ``kind`` names a module of ``chaos/faults``; ``target`` is a label (``replica-*`` lets the seed choose);
    ``when`` holds the condition that the fault waits for after its scheduled time, e.g.
    ``{"streaming": 3, "awaiting": 1}`` on the target.
    """

    kind: str
    target: str
    settings: dict[str, float] = field(default_factory=dict)
    when: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """A service-level objective over the counted calls of an arm.

    ``limit`` is absolute, or a multiple of the control arm's value when ``relative_to_control``. For rates
    the value must be at least the limit, for latencies at most. ``allowance_s`` is added to the limit of a
    latency: seconds that a policy may spend on purpose, such as a tool's deadline.
    """

    statistic: str
    """A name of ``chaos/slis``, or ``goodput``."""
    limit: float
    relative_to_control: bool = False
    allowance_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a statistic that does not exist.

        Raises:
            UnknownName: the text offers the nearest names.
        """
        require("statistic", self.statistic, (*STATISTICS, GOODPUT))

    @property
    def higher_is_better(self) -> bool:
        """Whether the value must be at least the limit (rates) or at most (latencies)."""
        return self.statistic == GOODPUT or STATISTICS[self.statistic].higher_is_better

    def describe(self) -> str:
        """Return the objective in words: ``ttft_p95 <= 3 x control``."""
        sign = ">=" if self.higher_is_better else "<="
        allowance = f" + {self.allowance_s:g} s" if self.allowance_s else ""
        relative = " x control" if self.relative_to_control else ""
        return f"{self.statistic} {sign} {self.limit:g}{relative}{allowance}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A scenario: load, fault, phases, arms, what is counted, and the objectives that decide.

    ``counted`` names a selector of ``chaos/selectors.py``: which calls the objectives are about;
    ``minimum_counted`` of them are needed in each arm, else the run is inconclusive.
    """

    name: str
    question: str
    load: Load
    faults: tuple[FaultPlan, ...]
    objectives: tuple[Objective, ...]
    counted: str
    minimum_counted: int
    phases: Phases = Phases()
    arms: tuple[Arm, ...] = DEFAULT_ARMS
    calibrate_loss: bool = False
    """Measure N-1 capacity too (a replica is really killed during calibration)."""
