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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final, Literal

from chaos.history import CallRecord

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
TOKEN_SHARE: Final = 5
"""Statistics over token gaps, many for each call, get this many times fewer resamples: each costs that much more."""
ANSWERED: Final = frozenset({"ok", "degraded"})
"""Outcomes that count as success; ``degraded`` is counted apart as well."""

Values = tuple[float, ...]
"""What one call contributes to a statistic: nothing, one number, or one a token gap."""
Reduce = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval. ``value`` is None when nothing was measured, ``inf`` when it means *never*."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    """Calls that contributed."""
    unit: str = ""
    method: Literal["bootstrap", "exact", "none"] = "none"

    @property
    def known(self) -> bool:
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Statistic:
    """A named number over calls: what each call contributes, and how the contributions become one number."""

    name: str
    unit: str
    higher_is_better: bool
    sample: Callable[[CallRecord], Values]
    reduce: Reduce

    def of(self, calls: Collection[CallRecord]) -> float | None:
        """Return the number, or None when no call contributes."""
        values = list(chain.from_iterable(self.sample(call) for call in calls))
        return self.reduce(values) if values else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; ``share`` is in (0, 1].

    Raises:
        ValueError: no values, or a share outside (0, 1].
    """
    if not values:
        raise ValueError("a percentile of no values does not exist; test for an empty sample first")
    if not 0 < share <= 1:
        raise ValueError(
            f"share is {share!r}; a percentile needs a share above 0 and at most 1, such as 0.95"
        )
    # Round first: 0.07 * 100 is 7.000000000000001 in binary, and its ceiling would be one rank too high.
    return sorted(values)[math.ceil(round(share * len(values), 9)) - 1]


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def answered(call: CallRecord) -> bool:
    """Tell whether the call was answered in time, in full or degraded."""
    return call.outcome in ANSWERED


def ttft_s(call: CallRecord) -> float | None:
    """Return scheduled send to first token; ``inf`` when it never came, None when the call takes no part."""
    if not call.stream or (call.outcome == "refused" and call.first_token_at is None):
        return None
    return math.inf if call.first_token_at is None else call.first_token_at - call.scheduled_at


def e2e_s(call: CallRecord) -> float | None:
    """Return scheduled send to the end of the answer; ``inf`` when it did not end well, None when refused."""
    if call.outcome == "refused":
        return None
    return call.ended_at - call.scheduled_at if answered(call) else math.inf


def gaps_s(call: CallRecord) -> Values:
    """Return the gaps between the streamed tokens of a call."""
    return tuple(later - earlier for earlier, later in pairwise(call.token_at))


def _one(value: float | None) -> Values:
    return () if value is None else (value,)


def _percentile_of(share: float) -> Reduce:
    return lambda values: percentile(values, share)


def _latency(name: str, sample: Callable[[CallRecord], Values], share: float) -> Statistic:
    return Statistic(name, "s", False, sample, _percentile_of(share))


SUCCESS_RATE: Final = Statistic(
    "success_rate", "ratio", True, lambda call: (1.0 if answered(call) else 0.0,), mean
)
STATISTICS: Final[Mapping[str, Statistic]] = {
    statistic.name: statistic
    for statistic in (
        SUCCESS_RATE,
        *(_latency(f"ttft_p{p}", lambda call: _one(ttft_s(call)), p / 100) for p in (50, 95, 99)),
        *(_latency(f"e2e_p{p}", lambda call: _one(e2e_s(call)), p / 100) for p in (50, 95)),
        # Sorted gaps: the same percentile, and the many sorts of a bootstrap find ordered runs.
        *(_latency(f"itl_p{p}", lambda call: tuple(sorted(gaps_s(call))), p / 100) for p in (50, 99)),
    )
}
"""All that need no further parameter; :func:`goodput` makes the one that does."""


def goodput(window_s: float, ttft_limit_s: float = math.inf, e2e_limit_s: float = math.inf) -> Statistic:
    """Return the statistic "calls a second that were answered within these limits".

    Args:
        window_s: length of the window from which the counted calls come, in seconds, above 0.
        ttft_limit_s: longest TTFT of a good stream.
        e2e_limit_s: longest E2E of a good call.
    """
    if window_s <= 0:
        raise ValueError(f"window_s is {window_s!r}; goodput needs a window longer than 0 s")

    def good(call: CallRecord) -> Values:
        first, whole = ttft_s(call), e2e_s(call)
        within = (first is None or first <= ttft_limit_s) and whole is not None and whole <= e2e_limit_s
        return (1.0 if answered(call) and within else 0.0,)

    return Statistic("goodput", "1/s", True, good, lambda values: sum(values) / window_s)


def _interval(draws: list[float]) -> tuple[float, float]:
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
    return Estimate(value, *_interval(draws), n, statistic.unit, "bootstrap")


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
    return Estimate(value, *_interval(draws), len(units), unit, "bootstrap")
