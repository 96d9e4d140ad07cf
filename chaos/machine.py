"""How much of the machine's processors others had while an arm ran: a neighbour can break an objective too.

What the run itself and the local cluster use is subtracted from what all use, the hypervisor's share (steal) included.
Sampled, because a process that was killed takes its account with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

import psutil

from chaos.own_processes import own_processes

MACHINE_ALONE: Final = "machine_alone"
"""Name of the check record that carries the share."""
OTHERS_SHARE: Final = "others_share"
MOST_OTHERS: Final = 0.2
"""Share of all processors above which a broken objective cannot be put down to a fault: 0.4 of two cores."""
EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Processor time in seconds since the boot: what there was, what was used, and what each own process used."""

    total_s: float
    busy_s: float
    own_s: dict[int, float]


def others_share(before: Reading, after: Reading) -> float:
    """Return the share of all processor time between two readings that was used, and not by us; 0 to 1."""
    total_s = after.total_s - before.total_s
    if total_s <= 0:
        return 0.0
    own_s = sum(used_s - before.own_s.get(pid, 0.0) for pid, used_s in after.own_s.items())
    return min(1.0, max(0.0, (after.busy_s - before.busy_s - own_s) / total_s))


def read() -> Reading:
    """Read the accounts of the machine, of this process and of the local cluster."""
    times = psutil.cpu_times()
    # What guests use is part of what users use already.
    parts = {name: value for name, value in times._asdict().items() if not name.startswith("guest")}
    idle_s = parts["idle"] + parts.get("iowait", 0.0)
    own_s: dict[int, float] = {}
    for process in own_processes():
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            own_s[process.pid] = used.user + used.system
    return Reading(sum(parts.values()), sum(parts.values()) - idle_s, own_s)


class Others:
    """Samples the others' share while it runs; ``share`` is the mean over what was sampled, None before that."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._shares: list[float] = []

    @property
    def share(self) -> float | None:
        return sum(self._shares) / len(self._shares) if self._shares else None

    async def run(self) -> None:
        """Sample until cancelled."""
        before = await asyncio.to_thread(read)
        while True:
            await asyncio.sleep(self._every_s)
            after = await asyncio.to_thread(read)
            self._shares.append(others_share(before, after))
            before = after
