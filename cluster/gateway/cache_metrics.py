"""What the answer cache is worth: saved compute, less what looking costs, less what wrong answers would cost."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from cluster import public
from policies.events import CacheUsed, WrongHitPrevented

OUTCOMES = ("hit", "stale", "miss", "bypass")
REASONS = ("tenant", "terms", "key", "seal", "future", "not_entitled")


class CacheMetrics:
    """Counts the cache's events in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name.removesuffix("_total"), text, labels, registry=registry)

        self._used = counter(
            public.METRIC_CACHE_LOOKUPS, "Calls of classes that may be answered from the cache.", "outcome"
        )
        self._saved = counter(public.METRIC_CACHE_SAVED, "Replica-seconds that hits did not cost again.")
        self._lookup = counter(public.METRIC_CACHE_LOOKUP, "Time that looking and verifying took.")
        self._wrong = counter(public.METRIC_CACHE_WRONG, "Replica-seconds expected to be lost to wrong hits.")
        self._foreign = counter(public.METRIC_CACHE_CROSS_TENANT, "Hits on another tenant's answer: never.")
        self._prevented = counter(
            public.METRIC_CACHE_PREVENTED, "Kept answers that were found and not given.", "reason"
        )
        self._lost = counter(public.METRIC_CACHE_LOST, "Lookups that the store did not answer.")
        self._value_s = 0.0
        value = Gauge(
            public.METRIC_CACHE_VALUE,
            "Saved compute less the cost of looking and the expected cost of wrong hits, in seconds.",
            registry=registry,
        )
        value.set_function(lambda: self._value_s)
        for outcome in OUTCOMES:
            self._used.labels(outcome)
        for reason in REASONS:
            self._prevented.labels(reason)

    def emit(self, event: CacheUsed | WrongHitPrevented) -> None:
        """Count one event."""
        if isinstance(event, WrongHitPrevented):
            self._prevented.labels(event.reason).inc()
            return
        self._used.labels(event.outcome).inc()
        self._saved.inc(event.saved_s)
        self._lookup.inc(event.lookup_s)
        self._wrong.inc(event.wrong_s)
        self._value_s += event.saved_s - event.lookup_s - event.wrong_s
        self._lost.inc(event.lost)
        if event.owner and event.owner != event.tenant:
            self._foreign.inc()
