"""Numbers out of metric pages; what is missing is None and never 0."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from chaos.scrape import buckets, increase, quantile, samples, total
from chaos.signals import gateway_reading, signal_record
from cluster import public

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",engine="0"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.125
"""


class GatewayPage:
    """A page as the gateway's own library writes it."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.calls = Counter(public.METRIC_CALLS, "", ["outcome"], registry=registry)
        self.refused = Counter(public.METRIC_REFUSED, "", ["reason"], registry=registry)
        self.retries = Counter(public.METRIC_RETRIES, "", registry=registry)
        self.queue = Gauge(public.METRIC_QUEUE_DEPTH, "", registry=registry)
        self.ttft = Histogram(public.METRIC_TTFT, "", buckets=(0.1, 0.2, 0.4), registry=registry)

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def test_only_the_wanted_metrics_are_read() -> None:
    found = samples(PAGE, {public.VLLM_RUNNING, public.VLLM_KV_USAGE})
    assert {s.name for s in found} == {public.VLLM_RUNNING, public.VLLM_KV_USAGE}
    assert total(found, public.VLLM_KV_USAGE) == 0.125
    assert total(found, public.VLLM_WAITING) is None


def test_signals_come_from_the_difference_of_two_readings() -> None:
    page = GatewayPage()
    page.calls.labels("ok").inc(10)
    before = gateway_reading(page.text(), 100.0)
    page.calls.labels("ok").inc(6)
    page.calls.labels("refused").inc(2)
    page.refused.labels("overloaded").inc(2)
    page.retries.inc(4)
    page.queue.set(3)
    for value in (0.05, 0.15, 0.15, 0.3):
        page.ttft.observe(value)
    record = signal_record("naive", gateway_reading(page.text(), 105.0), before, 0.5)
    assert record.queue_depth == 3
    assert record.reject_rate == pytest.approx(2 / 8)
    assert record.retry_rate == pytest.approx(4 / 8)
    assert record.cache_occupancy == 0.5
    assert record.ttft_p95_s is not None
    assert 0.2 < record.ttft_p95_s <= 0.4


def test_what_is_missing_is_none_and_never_zero() -> None:
    record = signal_record("naive", gateway_reading("", 1.0), gateway_reading("", 0.0), None)
    for name in ("queue_depth", "ttft_p95_s", "active_tokens", "headroom", "live_replicas"):
        assert getattr(record, name) is None
    assert record.reject_rate is None
    assert record.retry_rate is None


def test_a_declared_counter_that_never_counted_is_zero() -> None:
    page = GatewayPage()
    page.calls.labels("ok").inc(1)
    before = gateway_reading(page.text(), 0.0)
    page.calls.labels("ok").inc(1)
    assert signal_record("naive", gateway_reading(page.text(), 1.0), before, None).reject_rate == 0


def test_a_gateway_that_began_again_gives_no_rates() -> None:
    old, new = GatewayPage(), GatewayPage()
    old.calls.labels("ok").inc(50)
    new.calls.labels("ok").inc(1)
    record = signal_record("a", gateway_reading(new.text(), 2.0), gateway_reading(old.text(), 1.0), None)
    assert record.retry_rate is None
    assert record.reject_rate is None


def test_without_calls_a_rate_is_unknown() -> None:
    page = GatewayPage()
    reading = gateway_reading(page.text(), 1.0)
    assert signal_record("a", reading, reading, None).reject_rate is None


def test_quantile_is_linear_within_its_bucket() -> None:
    after = {0.1: 0.0, 0.2: 10.0, float("inf"): 10.0}
    assert quantile(0.5, {}, after) == pytest.approx(0.15)
    assert quantile(0.95, {}, after) == pytest.approx(0.195)
    assert quantile(0.95, after, after) is None
    assert quantile(0.5, {0.1: 5.0}, {0.1: 1.0, float("inf"): 9.0}) is None
    assert quantile(0.99, {}, {0.1: 1.0, float("inf"): 10.0}) == 0.1


def test_increase_needs_both_readings() -> None:
    assert increase(1, 4) == 3
    assert increase(None, 4) is None
    assert increase(4, None) is None
    assert increase(4, 1) is None


def test_buckets_are_summed_over_other_labels() -> None:
    page = '# TYPE h histogram\nh_bucket{le="1",a="x"} 2\nh_bucket{le="1",a="y"} 3\nh_bucket{le="+Inf",a="x"} 4\n'
    assert buckets(samples(page, {"h"}), "h") == {1.0: 5.0, float("inf"): 4.0}
