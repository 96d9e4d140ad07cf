"""What repeating costs is visible: in attempts and in tokens, asked for again and lost."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from cluster import public
from cluster.gateway.metrics import Metrics
from policies.events import AttemptEnded, AttemptStarted, Hedged, RetryScheduled, Wasted


def test_amplification_can_be_read_off_in_attempts_and_in_tokens() -> None:
    metrics = Metrics()
    for event in (
        AttemptStarted("a", 1, "r0", 120),
        AttemptEnded("a", 1, "r0", "failed", "ReplicaLost"),
        RetryScheduled("a", 2, 0.1),
        AttemptStarted("a", 2, "r1", 120),
        AttemptEnded("a", 2, "r1", "ok"),
        AttemptStarted("b", 1, "r0", 1000),
        Hedged("b", 2, 0.5),
        AttemptStarted("b", 2, "r2", 1000),
        AttemptEnded("b", 2, "r2", "ok"),
        AttemptEnded("b", 1, "r0", "cancelled"),
        Wasted("a", 100, 7),
        Wasted("b", 900, 0),
    ):
        metrics.emit(event)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    attempts = sum(samples[public.METRIC_ATTEMPTS, outcome] for outcome in ("ok", "failed", "cancelled"))
    assert attempts == 4
    assert samples[public.METRIC_ATTEMPT_TOKENS, "first"] == 1120
    assert samples[public.METRIC_ATTEMPT_TOKENS, "again"] == 1120
    assert samples[public.METRIC_WASTED_TOKENS, "prefill"] == 1000
    assert samples[public.METRIC_WASTED_TOKENS, "decode"] == 7
    assert samples[(public.METRIC_RETRIES,)] == samples[(public.METRIC_HEDGES,)] == 1
