"""The named statistics that objectives are written in, one idea a module.

To add one, write a :class:`~chaos.statistic.Statistic` in a module of its own and add one line to ``SLIS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.slis.effects import EFFECTS_ONCE
from chaos.slis.latency import E2E, ITL, TTFT
from chaos.slis.longest_gap import LONGEST_GAP
from chaos.slis.success import SUCCESS_RATE
from chaos.statistic import Statistic

SLIS: Final[tuple[Statistic, ...]] = (
    SUCCESS_RATE,
    *TTFT,
    *E2E,
    *ITL,
    LONGEST_GAP,
    EFFECTS_ONCE,
)
STATISTICS: Final[Mapping[str, Statistic]] = {statistic.name: statistic for statistic in SLIS}
"""All that need no further parameter; ``chaos.slo.goodput`` makes the one that does."""
