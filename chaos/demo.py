"""The demonstration: from nothing to a judged experiment, saying at the end what it took."""

from __future__ import annotations

import os
import time

from chaos import commands
from chaos.memory import PeakMemory

SCENARIO = "worker_loss"
INCONCLUSIVE = 2
REPEATS = 1
"""An inconclusive run (most often something else had the machine) is repeated once; a fail never is."""
STARTED = "BROWNOUT_DEMO_STARTED"
"""Set by ``make demo``: seconds since the epoch at which it began, so that installing is counted too."""


async def demo(on: str, seed: int) -> int:
    """Bring a cluster up, run ``worker_loss`` with its three arms, report, clean up; return the verdict's code."""
    started = float(os.environ.get(STARTED, "0") or 0) or time.time()
    with PeakMemory() as peak:
        for _ in range(1 + REPEATS):
            code = await commands.run(
                SCENARIO, on, seed=seed, out=None, arms=[], without=[], rate_per_s=None, bring_up=True
            )
            if code != INCONCLUSIVE:
                break
    took_s = time.time() - started
    print(f"took: {took_s:.0f} s in all; peak memory of all its processes: {peak.bytes / 2**30:.1f} GiB")
    return code
