"""The share of calls with an effect whose effect happened once at most, as the tool's own ledger has it."""

from __future__ import annotations

from typing import Final

from chaos.history import CallRecord
from chaos.statistic import Statistic, Values, mean


def _once(call: CallRecord) -> Values:
    return () if call.effects is None else (1.0 if call.effects <= 1 else 0.0,)


EFFECTS_ONCE: Final = Statistic("effects_once", "ratio", True, _once, mean)
