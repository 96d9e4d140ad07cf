"""Statistics over call records: pure, seeded, standard library only.

One definition of each number lives here, so that the verdict, the report and a user's own test cannot
disagree about what a percentile is.

- **Percentile**: nearest rank, the value at position ``ceil(p * n)`` of the sorted values. It is always a value
  that was observed, and unlike interpolation it stays defined when some values are infinite.
- **Latencies** count from ``scheduled_at``. A call that never got what is measured counts as ``inf`` ("never"), so
  that a service cannot look fast by failing its slow calls. A *refused* call takes no part in latencies: it was
  answered, early and on purpose; the success rate counts it.
- **TTFT and ITL** are of streams only: whoever did not ask for a stream sees no first token.
- **Intervals**: percentile bootstrap that resamples calls, never tokens; the gaps inside one call are not
  independent. A rate of exactly 0 or 1 cannot vary under resampling; there the exact binomial interval stands in.
- **Comparisons** of two arms resample *arrivals*: a drawn arrival brings its call in both arms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Final

from chaos.history import CallRecord
from chaos.slis import STATISTICS
from chaos.slis.success import SUCCESS_RATE
from chaos.statistic import Estimate, Statistic, Values, answered, e2e_s, gaps_s, mean, percentile, ttft_s

__all__ = [
    "CONFIDENCE",
    "RESAMPLES",
    "STATISTICS",
    "SUCCESS_RATE",
    "Estimate",
    "Statistic",
    "answered",
    "compare",
    "difference",
    "e2e_s",
    "estimate",
    "gaps_s",
    "goodput",
    "interval_of",
    "mean",
    "percentile",
    "ratio",
    "ttft_s",
]

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
TOKEN_SHARE: Final = 5
"""Statistics over token gaps, many for each call, get this many times fewer resamples: each costs that much more."""


def goodput(window_s: float, good: Callable[[CallRecord], bool] = answered) -> Statistic:
    """Return the statistic "good calls a second".

    Args:
        window_s: length of the window from which the counted calls come, in seconds, above 0.
        good: which calls are good, e.g. those within the limits of their class (:mod:`chaos.goodness`).
    """
    if window_s <= 0:
        raise ValueError(f"window_s is {window_s!r}; goodput needs a window longer than 0 s")

    def sample(call: CallRecord) -> Values:
        return (1.0 if good(call) else 0.0,)

    return Statistic("goodput", "1/s", True, sample, lambda values: sum(values) / window_s)


def interval_of(draws: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the ``CONFIDENCE`` interval of resampled values."""
    tail = (1 - CONFIDENCE) / 2
    return percentile(draws, tail), percentile(draws, 1 - tail)


def _exact_rate(value: float, n: int) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a rate that is exactly 0 or exactly 1."""
    reach = ((1 - CONFIDENCE) / 2) ** (1 / n)
    return (reach, 1.0) if value == 1 else (0.0, 1 - reach)


def estimate(
    statistic: Statistic, calls: Collection[CallRecord], seed: str, resamples: int = RESAMPLES
) -> Estimate:
    """Return a statistic of one arm with its bootstrap interval; the same seed gives the same interval."""
    samples = [statistic.sample(call) for call in calls]
    values = list(chain.from_iterable(samples))
    n = sum(1 for sample in samples if sample)
    if not values:
        return Estimate(None, None, None, 0, statistic.unit)
    value = statistic.reduce(values)
    if statistic is SUCCESS_RATE and value in (0.0, 1.0):
        return Estimate(value, *_exact_rate(value, n), n, statistic.unit, "exact")
    chance = random.Random(f"{seed}/{statistic.name}")
    draws = []
    if len(values) > TOKEN_SHARE * len(samples):
        resamples = max(1, resamples // TOKEN_SHARE)
    for _ in range(resamples):
        if drawn := list(chain.from_iterable(chance.choices(samples, k=len(samples)))):
            draws.append(statistic.reduce(drawn))
    return Estimate(value, *interval_of(draws), n, statistic.unit, "bootstrap")


def difference(a: float, b: float) -> float:
    """Return ``a - b``; two times *never* are equal."""
    return 0.0 if a == b else a - b


def ratio(a: float, b: float) -> float:
    """Return ``a / b``; equal values give 1, anything above nothing gives ``inf``."""
    if a == b:
        return 1.0
    return math.inf if b == 0 else a / b


def compare(
    statistic: Statistic,
    a: Collection[CallRecord],
    b: Collection[CallRecord],
    combine: Callable[[float, float], float],
    seed: str,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Return ``combine(statistic of a, statistic of b)`` with an interval, paired on the same arrivals.

    The units that are resampled are the arrivals ``n`` that either arm counts. A drawn arrival brings its call
    in ``a`` and its call in ``b``; an arm that does not count that arrival gets nothing from it. So the value is that
    of the two arms' own numbers, and what both arms share (a burst, a long prompt) does not widen the interval.
    """
    in_a = {call.n: statistic.sample(call) for call in a}
    in_b = {call.n: statistic.sample(call) for call in b}
    units = [(in_a.get(n, ()), in_b.get(n, ())) for n in sorted(in_a.keys() | in_b.keys())]

    def combined(drawn: Sequence[tuple[Values, Values]]) -> float | None:
        left = list(chain.from_iterable(unit[0] for unit in drawn))
        right = list(chain.from_iterable(unit[1] for unit in drawn))
        return combine(statistic.reduce(left), statistic.reduce(right)) if left and right else None

    unit = "x" if combine is ratio else {"ratio": "points"}.get(statistic.unit, statistic.unit)
    value = combined(units)
    if value is None:
        return Estimate(None, None, None, 0, unit)
    chance = random.Random(f"{seed}/{statistic.name}/paired")
    draws = [
        draw
        for draw in (combined(chance.choices(units, k=len(units))) for _ in range(resamples))
        if draw is not None
    ]
    return Estimate(value, *interval_of(draws), len(units), unit, "bootstrap")
