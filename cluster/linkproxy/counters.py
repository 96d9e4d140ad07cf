"""Counts bytes per link and direction, under the metric names and labels of Toxiproxy.

One difference: the counters move while a connection is open. The Go server adds a connection's bytes only when
it ends, which hides a long stream from Prometheus for as long as it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector


class Labels(NamedTuple):
    direction: str
    proxy: str
    listener: str
    upstream: str


@dataclass(slots=True)
class ByteCount:
    """Bytes read from the one side (``received``) and written to the other (``sent``)."""

    received: int = 0
    sent: int = 0


class ByteCounters(Collector):
    """All byte counts of the process, by labels; a deleted link's stay, as counters should."""

    def __init__(self) -> None:
        self._counts: dict[Labels, ByteCount] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def of(self, labels: Labels) -> ByteCount:
        return self._counts.setdefault(labels, ByteCount())

    def collect(self) -> Iterator[CounterMetricFamily]:
        received = CounterMetricFamily(
            "toxiproxy_proxy_received_bytes", "Bytes read from the source of a link.", labels=Labels._fields
        )
        sent = CounterMetricFamily(
            "toxiproxy_proxy_sent_bytes", "Bytes written to the destination of a link.", labels=Labels._fields
        )
        for labels, count in self._counts.items():
            received.add_metric(labels, count.received)
            sent.add_metric(labels, count.sent)
        yield received
        yield sent

    def exposition(self) -> bytes:
        """Return the Prometheus text format, version 0.0.4."""
        return generate_latest(self._registry)
