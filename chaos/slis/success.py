"""The share of calls that were answered in time, in full or degraded."""

from __future__ import annotations

from typing import Final

from chaos.statistic import Statistic, answered, mean

SUCCESS_RATE: Final = Statistic(
    "success_rate", "ratio", True, lambda call: (1.0 if answered(call) else 0.0,), mean
)
