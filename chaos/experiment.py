"""What an experiment is: frozen data, so that a scenario can be read, compared and printed.

A scenario (``chaos/scenarios/*.py``) is one :class:`Experiment`. Nothing here talks to a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final, Literal

from chaos.history import SignalRecord
from chaos.names import require
from chaos.slis import STATISTICS

GOODPUT: Final = "goodput"
TIME_TO_RECOVER: Final = "time_to_recover"
TIME_TO_DETECT: Final = "time_to_detect"
OF_AN_ARM: Final = (GOODPUT, TIME_TO_RECOVER, TIME_TO_DETECT)
"""Statistics that need more than calls: a window, the control arm, or what the gateway said."""

Role = Literal["control", "naive", "resilient"]
"""What an arm is for: no fault; the fault without what is claimed to help; the fault with it."""
Clients = Literal["", "once", "new_keys", "no_cache"]
CLIENTS: Final = {
    "once": "never repeat a call",
    "new_keys": "take a new key for each try",
    "no_cache": "want every answer computed",
}
"""How an arm's clients differ from what their classes say, in words."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One pass over the same arrivals. ``fault`` says whether the scenario's faults are injected.

    ``role`` follows from the rest where it is not given: an arm with the fault whose profile is not ``resilient`` is
    the one that shows what the fault does to a service without the policies, whatever its name.

    ``clients`` takes from clients what their classes say of them (:mod:`chaos.load.habits`): ``once`` that they repeat,
    ``new_keys`` that what they repeat has the key of the first try, ``no_cache`` that an earlier answer will do.
    """

    name: str
    profile: str
    fault: bool
    without: tuple[str, ...] = ()
    role: Role | Literal[""] = ""
    clients: Clients = ""

    def __post_init__(self) -> None:
        """Fill in the role.

        Raises:
            UnknownName: a role or a habit that does not exist.
        """
        derived = "control" if not self.fault else "resilient" if self.profile == "resilient" else "naive"
        role = require("role", self.role or derived, ("control", "naive", "resilient"))
        if self.clients:
            require("habit of clients", self.clients, CLIENTS)
        object.__setattr__(self, "role", role)


CONTROL = Arm("control", "resilient", fault=False)
NAIVE = Arm("naive", "naive", fault=True)
RESILIENT = Arm("resilient", "resilient", fault=True)
DEFAULT_ARMS = (CONTROL, NAIVE, RESILIENT)


@dataclass(frozen=True, slots=True)
class CallClass:
    """One kind of call in a mix; lengths in tokens, drawn uniformly from the (low, high) pairs.

    ``share`` is its part of the arrivals, in proportion to the other classes' shares; ``surge_share`` its part of the
    arrivals that a load fault adds, None for the same. ``priority``, ``tenant`` and ``service_class`` go to the gateway
    as headers; an empty one is not sent. ``api_key`` names a key of the experiment's tenants.

    ``transfer`` calls have the tool submit a transfer. They carry an idempotency key, as all do whose clients
    ``repeat``: send a call again while it has no final answer. ``respond_async`` asks for a job, whose result is
    waited for up to ``result_within_s`` after the call was due. With ``prompts`` there are only so many different
    calls, the same for all classes with that number and those lengths.
    """

    name: str
    share: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    priority: str = ""
    tenant: str = ""
    service_class: str = ""
    stream_share: float = 1.0
    client_deadline_s: float = 10.0
    surge_share: float | None = None
    api_key: str = ""
    transfer: bool = False
    repeats: bool = False
    respond_async: bool = False
    result_within_s: float = 30.0
    prompts: int = 0

    @property
    def of_a_surge(self) -> float:
        """Its share of the arrivals that a load fault adds."""
        return self.share if self.surge_share is None else self.surge_share


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop Poisson arrivals, of one kind of call or of several ``classes``.

    With ``classes`` the lengths, stream share and deadline of each class hold, and those here mean nothing.

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
    classes: tuple[CallClass, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a mix from which nothing could be drawn.

        Raises:
            ValueError: names the classes and says what to mend.
        """
        names = [one.name for one in self.classes]
        if len(set(names)) != len(names):
            raise ValueError(f"classes are named {names}: each needs a name of its own")
        for told, shares in (
            ("share", [one.share for one in self.classes]),
            ("surge_share", [one.of_a_surge for one in self.classes]),
        ):
            if self.classes and (min(shares) < 0 or sum(shares) <= 0):
                raise ValueError(f"{told} of the classes {names} is {shares}: none below 0, and one above")


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

    ``kind`` names a module of ``chaos/faults``; ``target`` is a label (``replica-*`` lets the seed choose; with
    ``every`` all that match are hit, one after the other within milliseconds);
    ``when`` holds the condition that the fault waits for after its scheduled time, e.g.
    ``{"streaming": 3, "awaiting": 1}`` on the target.
    """

    kind: str
    target: str
    settings: dict[str, float] = field(default_factory=dict)
    when: dict[str, int] = field(default_factory=dict)
    every: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """What must be seen in the naive arm for the fault to have hurt in the way that the scenario is about.

    ``signal`` is a field of :class:`~chaos.history.SignalRecord`; between the fault and the end of the arm's last call
    it must rise by at least ``rise`` above what it was at the fault, in the signal's own unit.
    """

    signal: str
    rise: float

    def __post_init__(self) -> None:
        """Refuse a signal that is not sampled.

        Raises:
            UnknownName: the text offers the nearest names.
        """
        sampled = [one.name for one in fields(SignalRecord) if one.name not in ("arm", "at")]
        require("signal", self.signal, sampled)


@dataclass(frozen=True, slots=True)
class Objective:
    """A service-level objective over the counted calls of an arm, or over some of them.

    ``limit`` is absolute, or a multiple of the control arm's value when ``relative_to_control``, or of the calibrated
    capacity (calls per second, for ``goodput``) when ``relative_to_capacity``. For rates the value must be at least the
    limit, for latencies at most. ``allowance_s`` is added to the limit of a latency: seconds that a policy may spend on
    purpose, such as a tool's deadline.

    ``call_class`` takes only calls of that class; ``counted`` another selector than the experiment's; ``from_s`` leaves
    out the calls of the window's first seconds.
    """

    statistic: str
    """A name of ``chaos/slis``, or one of ``OF_AN_ARM``."""
    limit: float
    relative_to_control: bool = False
    allowance_s: float = 0.0
    relative_to_capacity: bool = False
    call_class: str = ""
    counted: str = ""
    from_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a statistic that does not exist, and a limit relative to what it cannot be relative to.

        Raises:
            UnknownName: the text offers the nearest names.
            ValueError: says which field, and the mend.
        """
        require("statistic", self.statistic, (*STATISTICS, *OF_AN_ARM))
        if self.relative_to_capacity and (self.statistic != GOODPUT or self.relative_to_control):
            raise ValueError(
                f"relative_to_capacity is set for {self.statistic!r}: it is for {GOODPUT!r} alone, and not together "
                f"with relative_to_control"
            )
        if self.from_s < 0:
            raise ValueError(f"from_s is {self.from_s:g}: seconds after the window's begin, 0 or more")

    @property
    def higher_is_better(self) -> bool:
        """Whether the value must be at least the limit (rates) or at most (latencies)."""
        if self.statistic in OF_AN_ARM:
            return self.statistic == GOODPUT
        return STATISTICS[self.statistic].higher_is_better

    @property
    def scope(self) -> tuple[str, str, float]:
        """What tells the calls of this objective from those of another: class, selector, and seconds left out."""
        return self.call_class, self.counted, self.from_s

    def describe(self) -> str:
        """Return the objective in words: ``ttft_p95 of critical <= 3 x control``."""
        sign = ">=" if self.higher_is_better else "<="
        allowance = f" + {self.allowance_s:g} s" if self.allowance_s else ""
        relative = (
            " x control" if self.relative_to_control else " x capacity" if self.relative_to_capacity else ""
        )
        of = f" of {self.call_class}" if self.call_class else ""
        within = f" in {self.counted}" if self.counted else ""
        later = f" from {self.from_s:g} s on" if self.from_s else ""
        return f"{self.statistic}{of}{within}{later} {sign} {self.limit:g}{relative}{allowance}"


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
    signs: tuple[Sign, ...] = ()
    """How the naive arm must have been hurt."""
    gateway: dict[str, str] = field(default_factory=dict)
    """Environment variables that its gateway runs with beside what the cluster was started with."""
    tenants: str = ""
    """A tenants file without its secret and without keys; empty for a gateway that asks for none."""
    keys: dict[str, str] = field(default_factory=dict)
    """Whose each key is, as TENANT/PRINCIPAL, by the name that classes and faults give it. What has no key is sent with
    the first."""

    def __post_init__(self) -> None:
        """Refuse an objective about a class that the load does not have, and a class with a key that nobody has.

        Raises:
            UnknownName: the text offers the nearest names.
        """
        names = [one.name for one in self.load.classes]
        for objective in self.objectives:
            if objective.call_class:
                require("class of calls", objective.call_class, names)
        for one in self.load.classes:
            if one.api_key:
                require("key", one.api_key, self.keys)
