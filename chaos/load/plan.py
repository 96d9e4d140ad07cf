"""The plan of an arm: every call and every fault with its scheduled time, computed before anything is sent."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.experiment import Experiment
from chaos.load.arrivals import poisson
from chaos.load.prompts import Ask, ask
from chaos.load.surge import extra_rate
from chaos.names import UnknownName

FAULT_JITTER_S = 1.0
"""The seed moves the fault's scheduled time by up to this much, so that seeds differ in more than arrivals."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """Call ``n``, to be sent ``offset_s`` seconds after the arm's start.

    One of a ``surge`` is sent only in an arm in which the burst is in force; their numbers follow all others.
    """

    n: int
    offset_s: float
    ask: Ask
    surge: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same in every arm of a seed. Offsets count from the arm's start."""

    calls: tuple[PlannedCall, ...]
    fault_offset_s: float
    """The scheduled time of the scenario's faults."""
    steady_offset_s: float
    duration_s: float
    """No call arrives after this."""
    rate_per_s: float = 0.0
    """Of the arrivals that every arm is sent."""
    extra_per_s: float = 0.0
    """What a burst adds to it while it is in force."""

    def calls_of(self, *, fault: bool) -> tuple[PlannedCall, ...]:
        """Return the calls of an arm with or without the scenario's faults."""
        return self.calls if fault else tuple(call for call in self.calls if not call.surge)


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
    extra_per_s = extra_rate(experiment, rate_per_s)
    if extra_per_s > 0:
        extra = poisson(extra_per_s, phases.hold_s, f"{seed}/surge")
        calls += tuple(
            PlannedCall(len(offsets) + i, fault_offset_s + after_s, _extra(experiment, seed, i), surge=True)
            for i, after_s in enumerate(extra)
        )
    return Plan(calls, fault_offset_s, phases.warm_up_s, duration_s, rate_per_s, extra_per_s)


def _extra(experiment: Experiment, seed: int, i: int) -> Ask:
    return ask(experiment.load, f"{seed}/surge", i, surge=True)


def choose_targets(target: str, labels: list[str], seed: int, *, every: bool = False) -> list[str]:
    """Return the labels that ``target`` means: one, or with ``every`` all that match a wildcard.

    Raises:
        UnknownName: a wildcard that matches none of the labels.
    """
    one = choose_target(target, labels, seed)
    if not every or not target.endswith("*"):
        return [one]
    return sorted({label for label in labels if label.startswith(target[:-1])})


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
