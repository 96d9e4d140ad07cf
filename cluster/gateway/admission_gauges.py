"""What the limiter shows of itself: who waits, who is in, and how many may be.

The limiter belongs to a pipeline and goes with it; the gauges stay and read whichever is in use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster import public
from cluster.gateway.metrics import Metrics
from policies.admission import Admission
from policies.priority import Priority

_BY: Final = "priority"


def add_admission_gauges(metrics: Metrics, admission: Callable[[], Admission | None]) -> None:
    """Show the limiter that ``admission`` returns; all gauges are 0 while there is none."""

    def read(what: Callable[[Admission], float]) -> Callable[[], float]:
        def value() -> float:
            present = admission()
            return 0.0 if present is None else what(present)

        return value

    metrics.gauges(
        public.METRIC_QUEUED_CALLS,
        "Calls that wait for a permit.",
        _BY,
        {one.label: read(lambda it, one=one: it.queued(one)) for one in Priority},  # type: ignore[misc]
    )
    metrics.gauges(
        public.METRIC_PERMITS,
        "Sequences that hold a permit.",
        _BY,
        {one.label: read(lambda it, one=one: it.in_use(one)) for one in Priority},  # type: ignore[misc]
    )
    metrics.gauge(
        public.METRIC_QUEUED_TOKENS,
        "Prompt and expected output tokens of the calls that wait for a permit.",
        read(lambda it: it.backlog().tokens),
    )
    metrics.gauge(public.METRIC_LIMIT, "Sequences that may hold a permit at once.", read(lambda it: it.limit))
