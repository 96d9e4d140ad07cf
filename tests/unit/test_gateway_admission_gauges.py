"""What the limiter shows of itself in the metrics."""

from __future__ import annotations

import asyncio

from cluster import public
from cluster.gateway.admission_gauges import add_admission_gauges
from cluster.gateway.metrics import Metrics
from cluster.settings import Settings
from policies.admission import Admission
from policies.call import Call
from policies.priority import Priority
from tests.fakes.policy_bench import CLOCK, call
from tests.fakes.virtual_time import run


def test_the_gauges_follow_whichever_limiter_is_in_use() -> None:
    async def main() -> tuple[str, str, str]:
        present: list[Admission | None] = [None]
        metrics = Metrics()
        add_admission_gauges(metrics, lambda: present[0])
        without = metrics.render().decode()

        async def hold(_: Call) -> None:
            await asyncio.sleep(1)

        admission = present[0] = Admission(lambda: 2.5, clock=CLOCK)
        tasks = [
            asyncio.create_task(admission(call(str(n), priority=p), hold))
            for n, p in enumerate((Priority.CRITICAL, Priority.CRITICAL, Priority.SHEDDABLE))
        ]
        await asyncio.sleep(0.1)
        busy = metrics.render().decode()
        await asyncio.gather(*tasks)
        return without, busy, metrics.render().decode()

    without, busy, after = run(main())
    assert f"{public.METRIC_LIMIT} 0.0" in without
    for expected in (
        f'{public.METRIC_QUEUED_CALLS}{{priority="sheddable"}} 1.0',
        f'{public.METRIC_QUEUED_CALLS}{{priority="critical"}} 0.0',
        f'{public.METRIC_PERMITS}{{priority="critical"}} 2.0',
        f"{public.METRIC_QUEUED_TOKENS} 120.0",
        f"{public.METRIC_LIMIT} 2.5",
    ):
        assert expected in busy, expected
    assert f'{public.METRIC_PERMITS}{{priority="critical"}} 0.0' in after
    assert f"{public.METRIC_QUEUED_TOKENS} 0.0" in after


def test_the_cache_that_admission_counts_with_is_known_of_the_own_model_only() -> None:
    assert Settings(kv_cache_bytes=48 * 1024 * 1024).usable_cache_tokens == int(0.9 * 12_288)
    assert Settings(model="/somebody/elses").usable_cache_tokens is None
    assert Settings(model="/somebody/elses", kv_cache_tokens=50_000).usable_cache_tokens == 45_000
