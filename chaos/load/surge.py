"""Arrivals that a load fault adds: planned like all others, and let through only while the fault is in force.

A burst is a fault in its life (injected, proven, reverted, bounded by a limit), but it acts in the load client, and
two arms are comparable only if it adds the very same calls in both. So the extra arrivals stand in the plan, drawn
by the seed and marked, and injecting the fault opens a gate that the load client holds them behind. The control arm,
which is sent the rest of the same plan, never sees them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from chaos.experiment import Experiment

BURST: Final = "burst"
"""The kind of fault whose arrivals these are."""
SETTINGS: Final = {"times": 3.0}
"""``times``: the rate of all arrivals while it is in force, as a multiple of the scenario's own."""


def extra_rate(experiment: Experiment, rate_per_s: float) -> float:
    """Return the calls per second that the experiment's burst adds to ``rate_per_s``; 0 when it has none.

    Raises:
        ValueError: it has two, or one that adds nothing.
    """
    bursts = [plan for plan in experiment.faults if plan.kind == BURST]
    if not bursts:
        return 0.0
    if len(bursts) > 1:
        raise ValueError(f"experiment {experiment.name!r} has {len(bursts)} bursts: one at a time")
    times = float(bursts[0].settings.get("times", SETTINGS["times"]))
    if not times > 1:
        raise ValueError(
            f"burst: times is {times:g}, it must be above 1: a multiple of the scenario's own rate"
        )
    return rate_per_s * (times - 1)


class Surge:
    """The gate of one arm. ``rate_per_s`` is the arm's own rate, ``extra_per_s`` what the burst adds."""

    def __init__(self, rate_per_s: float = 0.0, extra_per_s: float = 0.0) -> None:
        self.rate_per_s = rate_per_s
        self.extra_per_s = extra_per_s
        self.sent = 0
        """Extra calls that the load client has sent."""
        self.closed = False
        self._decided = asyncio.Event()
        self._open = False

    def open(self) -> None:
        """Let the extra arrivals through from now on."""
        self._open = not self.closed
        self._decided.set()

    def close(self) -> None:
        """Let none through any more. Safe twice, and when it was never opened."""
        self.closed = True
        self._open = False
        self._decided.set()

    async def opened(self) -> bool:
        """Wait until it is opened; False when it was closed instead, or since."""
        await self._decided.wait()
        return self._open
