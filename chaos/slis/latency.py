"""Percentiles of the latencies: time to first token, end to end, and gaps between tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chaos.history import CallRecord
from chaos.statistic import Statistic, Values, e2e_s, gaps_s, percentile, ttft_s


def _one(value: float | None) -> Values:
    return () if value is None else (value,)


def _percentiles(
    name: str, sample: Callable[[CallRecord], Values], percents: tuple[int, ...]
) -> tuple[Statistic, ...]:
    def statistic(percent: int) -> Statistic:
        return Statistic(
            f"{name}_p{percent}", "s", False, sample, lambda values: percentile(values, percent / 100)
        )

    return tuple(statistic(percent) for percent in percents)


TTFT: Final = _percentiles("ttft", lambda call: _one(ttft_s(call)), (50, 95, 99))
E2E: Final = _percentiles("e2e", lambda call: _one(e2e_s(call)), (50, 95))
# Sorted gaps: the same percentile, and the many sorts of a bootstrap find ordered runs.
ITL: Final = _percentiles("itl", lambda call: tuple(sorted(gaps_s(call))), (50, 99))
