"""What is shown of the jobs: how many wait and are worked on, for how long, and how they ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster import public
from cluster.gateway.jobs_queue import Count
from policies.work_queue import OVER, QUEUED

MOST_CLASSES: Final = 20
OTHER: Final = "other"
OUTCOMES: Final = ("accepted", *OVER, "again", "later")
"""``again``: a try that failed and counts; ``later``: one that was given back and does not."""


class JobMetrics:
    """Counts into ``registry``. The gauges are of all gateways together, the counters of this one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["class"]
        self._queued = Gauge(public.METRIC_JOBS_QUEUED, "Jobs that wait.", labels, registry=registry)
        self._running = Gauge(
            public.METRIC_JOBS_RUNNING, "Jobs that are worked on.", labels, registry=registry
        )
        self._oldest = Gauge(
            public.METRIC_JOBS_OLDEST, "Seconds that the oldest waiting job has waited.", registry=registry
        )
        name = public.METRIC_JOBS.removesuffix("_total")
        self._outcomes = Counter(
            name, "Jobs accepted, and how tries of them ended.", ["outcome"], registry=registry
        )
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)

    def count(self, outcome: str) -> None:
        """A job was accepted, or a try of one has ended."""
        self._outcomes.labels(outcome).inc()

    def show(self, counts: Sequence[Count]) -> None:
        """Show what the store says now. Classes can be the callers' own words, so only the largest are named."""
        named = {
            name for name, _ in sorted(_by_class(counts).items(), key=lambda one: -one[1])[:MOST_CLASSES]
        }
        for gauge, queued in ((self._queued, True), (self._running, False)):
            gauge.clear()
            told: dict[str, int] = defaultdict(int)
            for count in counts:
                if (count.state == QUEUED) == queued:
                    told[count.service_class if count.service_class in named else OTHER] += count.jobs
            for name, jobs in told.items():
                gauge.labels(name).set(jobs)
        waiting = (count.oldest_s for count in counts if count.state == QUEUED)
        self._oldest.set(max(waiting, default=0.0))


def _by_class(counts: Sequence[Count]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for count in counts:
        total[count.service_class] += count.jobs
    return total
