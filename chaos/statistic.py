"""What a statistic over call records is: the words in which objectives are written.

One definition of each number lives here, so that the verdict, the report and a user's own test cannot
disagree about what a percentile is. ``chaos/slis`` holds the named statistics made of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final, Literal

from chaos.history import CallRecord

ANSWERED: Final = frozenset({"ok", "degraded", "deferred_done"})
"""Outcomes that count as success; ``degraded`` and ``deferred_done`` are counted apart as well."""
_NO_LATENCY: Final = frozenset({"refused", "deferred", "deferred_done"})
"""Outcomes of calls that take no part in latencies: they were told to come back."""

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
    """Tell whether the call was answered in time, in full or degraded, or accepted for later and answered then."""
    return call.outcome in ANSWERED


def ttft_s(call: CallRecord) -> float | None:
    """Return scheduled send to first token; ``inf`` when it never came, None when the call takes no part."""
    if not call.stream or (call.outcome in _NO_LATENCY and call.first_token_at is None):
        return None
    return math.inf if call.first_token_at is None else call.first_token_at - call.scheduled_at


def e2e_s(call: CallRecord) -> float | None:
    """Return scheduled send to end; ``inf`` when it did not end well, None when refused or deferred."""
    if call.outcome in _NO_LATENCY:
        return None
    return call.ended_at - call.scheduled_at if answered(call) else math.inf


def gaps_s(call: CallRecord) -> Values:
    """Return the gaps between the streamed tokens of a call."""
    return tuple(later - earlier for earlier, later in pairwise(call.token_at))
