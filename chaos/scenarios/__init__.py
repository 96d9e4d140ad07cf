"""The scenarios, one a module, data only. To add one, write an Experiment and add one line to ``SCENARIOS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.experiment import Experiment
from chaos.names import require
from chaos.scenarios.burst import BURST
from chaos.scenarios.cache_isolation import CACHE_ISOLATION
from chaos.scenarios.deferred_burst import DEFERRED_BURST
from chaos.scenarios.frozen_replica import FROZEN_REPLICA
from chaos.scenarios.gateway_crash import GATEWAY_CRASH
from chaos.scenarios.long_context import LONG_CONTEXT
from chaos.scenarios.retry_storm import RETRY_STORM
from chaos.scenarios.slow_replica import SLOW_REPLICA
from chaos.scenarios.slow_tool import SLOW_TOOL
from chaos.scenarios.store_down import STORE_DOWN
from chaos.scenarios.tool_effect_answer_lost import TOOL_EFFECT_ANSWER_LOST
from chaos.scenarios.worker_loss import WORKER_LOSS

SCENARIOS: Final[Mapping[str, Experiment]] = {
    "worker_loss": WORKER_LOSS,
    "frozen_replica": FROZEN_REPLICA,
    "slow_replica": SLOW_REPLICA,
    "burst": BURST,
    "long_context": LONG_CONTEXT,
    "retry_storm": RETRY_STORM,
    "slow_tool": SLOW_TOOL,
    "tool_effect_answer_lost": TOOL_EFFECT_ANSWER_LOST,
    "store_down": STORE_DOWN,
    "gateway_crash": GATEWAY_CRASH,
    "cache_isolation": CACHE_ISOLATION,
    "deferred_burst": DEFERRED_BURST,
}


def scenario(name: str) -> Experiment:
    """Return the scenario of that name.

    Raises:
        UnknownName: there is none; the text offers the nearest.
    """
    return SCENARIOS[require("scenario", name, SCENARIOS)]
