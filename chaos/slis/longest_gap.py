"""The longest silence inside any stream: what a reader of a chat notices first."""

from __future__ import annotations

from typing import Final

from chaos.history import CallRecord
from chaos.statistic import Statistic, Values, gaps_s


def _longest(call: CallRecord) -> Values:
    gaps = gaps_s(call)
    return (max(gaps),) if gaps else ()


LONGEST_GAP: Final = Statistic("longest_gap", "s", False, _longest, max)
