"""Which calls are good: answered within every latency objective of their class.

Goodput and the time to recover are about good calls. Limits that are multiples of the control arm's value are
multiplied out first, so that a call is good or not by seconds, the same in every arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from chaos.experiment import Experiment, Objective
from chaos.history import CallRecord
from chaos.statistic import answered, e2e_s, ttft_s


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest TTFT of a good stream and longest E2E of a good call, in seconds."""

    ttft_s: float = math.inf
    e2e_s: float = math.inf

    def good(self, call: CallRecord) -> bool:
        """Tell whether the call was answered within the limits."""
        first, whole = ttft_s(call), e2e_s(call)
        in_time = (first is None or first <= self.ttft_s) and whole is not None and whole <= self.e2e_s
        return answered(call) and in_time


UNLIMITED: Final = Limits()


@dataclass(frozen=True, slots=True)
class Goodness:
    """The limits of each class of calls; ``by_class`` has the empty name where the load is of one kind."""

    by_class: Mapping[str, Limits]

    def of(self, call: CallRecord) -> Limits:
        """Return the limits that hold for a call."""
        return self.by_class.get(call.call_class, UNLIMITED)

    def good(self, call: CallRecord) -> bool:
        """Tell whether a call was answered within the limits of its class."""
        return self.of(call).good(call)


def goodness(experiment: Experiment, control_value: Callable[[Objective], float | None]) -> Goodness:
    """Return the limits that an experiment's latency objectives put on single calls.

    Args:
        control_value: the control arm's value of an objective that is relative to it; None when it has none, and
            then that objective limits nothing here (and is unknown where it is judged).
    """
    names = [one.name for one in experiment.load.classes] or [""]
    found = dict.fromkeys(names, UNLIMITED)
    for objective in experiment.objectives:
        kind = objective.statistic.split("_", 1)[0]
        if kind not in ("ttft", "e2e"):
            continue
        limit_s = objective.limit
        if objective.relative_to_control:
            reference = control_value(objective)
            if reference is None or not math.isfinite(reference):
                continue
            limit_s *= reference
        limit_s += objective.allowance_s
        for name in names:
            if objective.call_class in ("", name):
                now = found[name]
                tighter = {f"{kind}_s": min(limit_s, now.ttft_s if kind == "ttft" else now.e2e_s)}
                found[name] = replace(now, **tighter)
    return Goodness(found)
