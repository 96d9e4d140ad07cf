"""Capacities that were measured on a cluster, kept in memory for later runs on the very same cluster.

Measuring takes as long as an arm, so a suite that runs a scenario with several seeds measures once. What is shared is
only ever the same mix of calls on the same instance of a cluster, not older than a bound; and each history says from
which run its capacity is, and how old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from chaos.experiment import Load
from chaos.history import CalibrationRecord
from chaos.load.rate import RateMemory
from chaos.substrate import Substrate

MOST_AGE_S: Final = 1800.0


class SharedCapacity:
    """Keeps what was measured, by cluster and mix. ``now`` gives seconds since the epoch."""

    def __init__(self, most_age_s: float = MOST_AGE_S, now: Callable[[], float] = time.time) -> None:
        self._most_age_s = most_age_s
        self._now = now
        self._kept: dict[str, tuple[CalibrationRecord, ...]] = {}

    @staticmethod
    def key(substrate: Substrate, load: Load, *, with_loss: bool) -> str:
        """Return what a capacity belongs to; how much of it is offered does not matter."""
        mix = asdict(replace(load, share=0.0, of_replicas_lost=0))
        return RateMemory.key(substrate.name, substrate.instance(), substrate.settings(), mix, with_loss)

    def find(self, key: str) -> tuple[CalibrationRecord, ...]:
        """Return what was kept, each record saying from which run it is; nothing when it is too old."""
        found = self._kept.get(key, ())
        fresh = all(self._now() - record.measured_at <= self._most_age_s for record in found)
        return found if fresh else ()

    def keep(self, key: str, records: Sequence[CalibrationRecord], run: str) -> None:
        """Keep what the run of that name has just measured."""
        self._kept[key] = tuple(replace(record, shared_from=run) for record in records)

    def forget(self) -> None:
        """Drop what was kept: a run that showed nothing may have been led astray by it."""
        self._kept.clear()
