"""The gateway's Prometheus metrics; their names are in ``cluster.public``.

Counters follow the events, gauges are read when somebody asks. Label sets are bounded: outcomes and reasons,
never a replica's or a client's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from cluster import public
from cluster.gateway.cache_metrics import CacheMetrics
from policies.errors import CallRefused
from policies.events import (
    AttemptEnded,
    AttemptStarted,
    CacheUsed,
    CallEnded,
    Ejected,
    Event,
    Hedged,
    Resumed,
    RetryScheduled,
    RetrySuppressed,
    ToolEnded,
    Wasted,
    WrongHitPrevented,
)
from policies.ladder import RUNGS

OTHER: Final = "other"
REASONS: Final = (*sorted(kind.reason for kind in CallRefused.__subclasses__()), OTHER)
"""Why calls are refused; what is none of these is counted as ``other``, so that the label set stays bounded."""
_TTFT_BUCKETS: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    1.5,
    2,
    3,
    5,
    7.5,
    10,
    20,
    60,
)


class Metrics:
    """A sink that counts; ``registry`` holds everything that ``/metrics`` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._calls = self._counter(public.METRIC_CALLS, "Calls that have ended.", "outcome")
        self._attempts = self._counter(public.METRIC_ATTEMPTS, "Attempts that have ended.", "outcome")
        self._refused = self._counter(public.METRIC_REFUSED, "Calls refused on purpose.", "reason")
        self._rungs = self._counter(
            public.METRIC_RUNGS, "Calls that have ended, by rung of the ladder.", "rung"
        )
        self._retries = self._counter(public.METRIC_RETRIES, "Retries scheduled.")
        self._resumes = self._counter(public.METRIC_RESUMES, "Answers continued on another replica.")
        self._hedges = self._counter(public.METRIC_HEDGES, "Second attempts beside a first one.")
        self._work = self._counter(
            public.METRIC_ATTEMPT_TOKENS,
            "Tokens of work (prompt and expected output) of attempts.",
            "attempt",
        )
        self._wasted = self._counter(
            public.METRIC_WASTED_TOKENS, "Tokens that had to be computed once more.", "kind"
        )
        self._suppressed = self._counter(
            "brownout_retries_suppressed_total", "Retries that were possible but not made.", "reason"
        )
        self._ejections = self._counter(public.METRIC_EJECTIONS, "Replicas taken out of rotation.")
        self._tools = self._counter(public.METRIC_TOOL_CALLS, "Tool calls that have ended.", "outcome")
        self._tokens = self._counter("brownout_tokens_total", "Tokens of answers that ended well.", "kind")
        self._cache = CacheMetrics(self.registry)
        self._ttft = Histogram(
            public.METRIC_TTFT,
            "Time from a call's arrival to its first token.",
            registry=self.registry,
            buckets=_TTFT_BUCKETS,
        )
        for outcome in ("ok", "failed", "refused", "invalid", "cancelled"):
            self._calls.labels(outcome)
        for outcome in ("ok", "failed", "cancelled"):
            self._attempts.labels(outcome)
        for attempt in ("first", "again"):
            self._work.labels(attempt)
        for kind in ("prefill", "decode"):
            self._wasted.labels(kind)
        for reason in REASONS:
            self._refused.labels(reason)
        for rung in RUNGS:
            self._rungs.labels(rung)
        for outcome in ("ok", "deadline", "error", "unknown", "skipped", "breaker", "busy", "cancelled"):
            self._tools.labels(outcome)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what ``read`` returns whenever the metrics are asked for."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def gauges(self, name: str, text: str, label: str, reads: Mapping[str, Callable[[], float]]) -> None:
        """Show one gauge that has a value for each of these values of its label."""
        gauge = Gauge(name, text, [label], registry=self.registry)
        for value, read in reads.items():
            gauge.labels(value).set_function(read)

    def emit(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, CallEnded):
            self._calls.labels(event.outcome).inc()
            if (
                event.outcome == "refused"
            ):  # not at `Refused`: the ladder may have had the call served for less
                self._refused.labels(event.reason if event.reason in REASONS else OTHER).inc()
            if event.rung in RUNGS:
                self._rungs.labels(event.rung).inc()
        elif isinstance(event, AttemptStarted):
            self._work.labels("first" if event.attempt == 1 else "again").inc(event.tokens)
        elif isinstance(event, AttemptEnded):
            self._attempts.labels(event.outcome).inc()
        elif isinstance(event, RetryScheduled):
            self._retries.inc()
        elif isinstance(event, Resumed):
            self._resumes.inc()
        elif isinstance(event, Hedged):
            self._hedges.inc()
        elif isinstance(event, Wasted):
            self._wasted.labels("prefill").inc(event.prefill)
            self._wasted.labels("decode").inc(event.decode)
        elif isinstance(event, RetrySuppressed):
            self._suppressed.labels(event.reason).inc()
        elif isinstance(event, Ejected):
            self._ejections.inc()
        elif isinstance(event, CacheUsed | WrongHitPrevented):
            self._cache.emit(event)
        elif isinstance(event, ToolEnded):
            self._tools.labels(event.outcome).inc()

    def ttft(self, after_s: float) -> None:
        """Observe a time to first token."""
        self._ttft.observe(after_s)

    def tokens(self, prompt: int, completion: int) -> None:
        """Count the tokens of an answer."""
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("completion").inc(completion)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name.removesuffix("_total"), text, labels, registry=self.registry)
