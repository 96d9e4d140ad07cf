"""The scenarios, one a module, data only. To add one, write an Experiment and add one line to ``SCENARIOS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.experiment import Experiment
from chaos.names import require
from chaos.scenarios.slow_tool import SLOW_TOOL
from chaos.scenarios.worker_loss import WORKER_LOSS

SCENARIOS: Final[Mapping[str, Experiment]] = {
    "worker_loss": WORKER_LOSS,
    "slow_tool": SLOW_TOOL,
}


def scenario(name: str) -> Experiment:
    """Return the scenario of that name.

    Raises:
        UnknownName: there is none; the text offers the nearest.
    """
    return SCENARIOS[require("scenario", name, SCENARIOS)]
