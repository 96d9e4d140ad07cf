"""Samples the signals beside an arm: what an operator would have seen, and when.

Gateway signals are read every quarter of a second and replica signals about once a second, because a replica
renders its page on a core that it shares. A signal that cannot be read is None and never 0: a scrape outage
must not look like an idle cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chaos.admin import Admin, AdminError
from chaos.history import SignalRecord
from chaos.scrape import Sample, buckets, declares, increase, quantile, samples, total
from cluster import public

INTERVAL_S = 0.25
REPLICAS_EVERY = 4
"""Replica pages are read with every n-th sample."""
WINDOW_S = 5.0
"""Window of the TTFT percentile and of the rates."""
GATEWAY_METRICS = frozenset(
    {
        public.METRIC_CALLS,
        public.METRIC_RETRIES,
        public.METRIC_REFUSED,
        public.METRIC_QUEUE_DEPTH,
        public.METRIC_ACTIVE_TOKENS,
        public.METRIC_HEADROOM,
        public.METRIC_LIVE_REPLICAS,
        public.METRIC_TTFT,
    }
)
REPLICA_METRICS = frozenset(
    {public.VLLM_KV_USAGE, public.VLLM_RUNNING, public.VLLM_WAITING, public.VLLM_PREEMPTIONS}
)


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """One reading of the gateway's page."""

    at: float
    gauges: dict[str, float | None]
    calls: float | None
    refused: float | None
    retries: float | None
    ttft: dict[float, float]


def gateway_reading(page: str, at: float) -> GatewayReading:
    """Return what a gateway page of that moment says.

    A labelled counter that never counted has no sample, only a type: that is 0. One that is not declared is None.
    """
    found = samples(page, GATEWAY_METRICS)
    gauges = (
        public.METRIC_QUEUE_DEPTH,
        public.METRIC_ACTIVE_TOKENS,
        public.METRIC_HEADROOM,
        public.METRIC_LIVE_REPLICAS,
    )

    def counted(name: str) -> float | None:
        return total(found, name) if not declares(page, name) else total(found, name) or 0.0

    return GatewayReading(
        at,
        {name: total(found, name) for name in gauges},
        counted(public.METRIC_CALLS),
        counted(public.METRIC_REFUSED),
        counted(public.METRIC_RETRIES),
        buckets(found, public.METRIC_TTFT),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def signal_record(
    arm: str,
    now: GatewayReading,
    before: GatewayReading | None,
    cache_occupancy: float | None,
    preemptions: float | None = None,
) -> SignalRecord:
    """Return the signals of a moment; ``before`` is the reading at the beginning of the window."""
    calls = increase(before.calls, now.calls) if before else None
    return SignalRecord(
        arm=arm,
        at=now.at,
        queue_depth=now.gauges[public.METRIC_QUEUE_DEPTH],
        ttft_p95_s=quantile(0.95, before.ttft, now.ttft) if before else None,
        active_tokens=now.gauges[public.METRIC_ACTIVE_TOKENS],
        cache_occupancy=cache_occupancy,
        reject_rate=_share(increase(before.refused, now.refused), calls) if before else None,
        retry_rate=_share(increase(before.retries, now.retries), calls) if before else None,
        headroom=now.gauges[public.METRIC_HEADROOM],
        live_replicas=now.gauges[public.METRIC_LIVE_REPLICAS],
        preemptions=preemptions,
    )


async def replica_samples(admin: Admin, timeout_s: float = 1.0) -> dict[str, list[Sample]]:
    """Return the wanted samples of every replica that answers, by link."""

    async def one(link: str) -> tuple[str, list[Sample]]:
        url = f"{admin.endpoints.links_url}/replicas/{link}/metrics"
        return link, samples(await admin.text(url, timeout_s), REPLICA_METRICS)

    links = await admin.replica_links()
    answers = await asyncio.gather(*(one(link.name) for link in links), return_exceptions=True)
    pages: dict[str, list[Sample]] = {}
    for answer in answers:
        if isinstance(answer, BaseException):
            if not isinstance(answer, AdminError | ValueError):
                raise answer
        else:
            pages[answer[0]] = answer[1]
    return pages


async def of_replicas(admin: Admin) -> tuple[float | None, float | None]:
    """Return the mean KV cache usage, 0 to 1, and the sum of preemptions of the replicas that answer."""
    pages = (await replica_samples(admin)).values()
    usages = [usage for page in pages if (usage := total(page, public.VLLM_KV_USAGE)) is not None]
    thrown = [count for page in pages if (count := total(page, public.VLLM_PREEMPTIONS)) is not None]
    return sum(usages) / len(usages) if usages else None, sum(thrown) if thrown else None


class SignalSampler:
    """Samples until it is cancelled; one record every ``INTERVAL_S`` seconds to ``sink``."""

    def __init__(self, admin: Admin, arm: str, sink: Callable[[SignalRecord], None]) -> None:
        self._admin = admin
        self._arm = arm
        self._sink = sink
        self._readings: deque[GatewayReading] = deque()
        self._occupancy: float | None = None
        self._preemptions: float | None = None

    async def run(self) -> None:
        """Sample for ever."""
        replicas: asyncio.Task[None] | None = None
        count = 0
        try:
            while True:
                began = time.monotonic()
                if count % REPLICAS_EVERY == 0 and (replicas is None or replicas.done()):
                    replicas = asyncio.create_task(self._read_replicas())
                count += 1
                self._sink(await self._sample())
                await asyncio.sleep(max(0.01, INTERVAL_S - (time.monotonic() - began)))
        finally:
            if replicas is not None:
                replicas.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await replicas

    async def _read_replicas(self) -> None:
        try:
            self._occupancy, self._preemptions = await of_replicas(self._admin)
        except AdminError:
            self._occupancy = self._preemptions = None

    async def _sample(self) -> SignalRecord:
        try:
            page = await self._admin.text(f"{self._admin.endpoints.admin_url}/metrics")
            now = gateway_reading(page, time.time())
        except (AdminError, ValueError):
            return SignalRecord(
                arm=self._arm,
                at=time.time(),
                cache_occupancy=self._occupancy,
                preemptions=self._preemptions,
            )
        while self._readings and now.at - self._readings[0].at > WINDOW_S:
            self._readings.popleft()
        before = self._readings[0] if self._readings else None
        self._readings.append(now)
        return signal_record(self._arm, now, before, self._occupancy, self._preemptions)
