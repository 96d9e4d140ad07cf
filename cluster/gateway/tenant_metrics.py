"""Metrics of who was let in and of what was leased. No label names a tenant: there may be any number of them."""

from __future__ import annotations

from prometheus_client import Counter

from cluster import public
from cluster.gateway import quotas as leases
from cluster.gateway.metrics import Metrics
from cluster.gateway.tenants import REASONS, Tenants


def add_tenant_metrics(metrics: Metrics, tenants: Tenants, quotas: leases.Quotas | None) -> None:
    """Count callers who were not identified, and leases of quotas; tell whether the tenants file can be used."""
    strangers = _counter(
        metrics, public.METRIC_UNAUTHENTICATED, "Requests whose caller was not identified.", "reason"
    )
    for reason in REASONS:
        strangers.labels(reason)
    tenants.counted = lambda reason: strangers.labels(reason).inc()
    metrics.gauge(
        public.METRIC_TENANTS_USABLE, "1 while callers can be identified.", lambda: float(tenants.usable)
    )
    if quotas is not None:
        leased = _counter(
            metrics, public.METRIC_QUOTA_LEASES, "Blocks of quota asked of the store.", "quota", "outcome"
        )
        quotas.counted = lambda quota, outcome: leased.labels(quota, outcome).inc()


def _counter(metrics: Metrics, name: str, text: str, *labels: str) -> Counter:
    return Counter(name.removesuffix("_total"), text, labels, registry=metrics.registry)
