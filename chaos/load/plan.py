"""The plan of an arm: every call and every fault with its scheduled time, computed before anything is sent."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.experiment import Experiment
from chaos.load.arrivals import poisson
from chaos.load.prompts import Ask, ask
from chaos.names import UnknownName

FAULT_JITTER_S = 1.0
"""The seed moves the fault's scheduled time by up to this much, so that seeds differ in more than arrivals."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call ``n``, to be sent ``offset_s`` seconds after the arm's start."""

    n: int
    offset_s: float
    ask: Ask


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same in every arm of a seed. Offsets count from the arm's start."""

    calls: tuple[PlannedCall, ...]
    fault_offset_s: float
    """The scheduled time of the scenario's faults."""
    steady_offset_s: float
    duration_s: float
    """No call arrives after this."""


def make_plan(experiment: Experiment, rate_per_s: float, seed: int) -> Plan:
    """Return the plan of ``experiment`` at ``rate_per_s`` calls per second; pure, and the same for the same seed."""
    phases = experiment.phases
    jitter = min(FAULT_JITTER_S, phases.steady_s / 5)
    fault_offset_s = phases.warm_up_s + phases.steady_s + random.Random(f"{seed}/fault").uniform(0, jitter)
    duration_s = fault_offset_s + phases.hold_s + phases.recovery_s
    offsets = poisson(rate_per_s, duration_s, seed)
    calls = tuple(
        PlannedCall(n, offset_s, ask(experiment.load, seed, n)) for n, offset_s in enumerate(offsets)
    )
    return Plan(calls, fault_offset_s, phases.warm_up_s, duration_s)


def choose_target(target: str, labels: list[str], seed: int) -> str:
    """Return the label that ``target`` means: ``replica-*`` lets the seed choose among the live ``labels``.

    Anything else is returned as it is.

    Raises:
        UnknownName: a wildcard that matches none of the labels.
    """
    if not target.endswith("*"):
        return target
    matching = sorted({label for label in labels if label.startswith(target[:-1])})
    if not matching:
        raise UnknownName(f"no live link matches {target!r}; live are: {', '.join(labels) or 'none'}")
    return random.Random(f"{seed}/target").choice(matching)
