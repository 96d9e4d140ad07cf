"""What a gateway does for its jobs in the background: works them off, tidies up, and shows how they stand."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cluster.gateway.completions import Completions
from cluster.gateway.generation import PATHS
from cluster.gateway.jobs import Jobs
from cluster.gateway.jobs_metrics import JobMetrics
from cluster.gateway.jobs_runner import JobRunner
from cluster.gateway.service import Gateway
from cluster.gateway.store.store import StoreUnavailable

_LOG = logging.getLogger(__name__)
_TIDY_S: Final = 5.0


async def run_jobs(gateway: Gateway) -> None:
    """Work until cancelled; returns at once where the gateway has no jobs."""
    jobs = gateway.state.jobs
    if jobs is None:
        return
    metrics = JobMetrics(gateway.metrics.registry)
    jobs.on_accepted = lambda: metrics.count("accepted")
    apps = {path: Completions(gateway, api) for api, path in PATHS.items()}
    runner = JobRunner(gateway, jobs, apps, told=metrics.count)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        group.create_task(_tidy(gateway, jobs, metrics))


async def _tidy(gateway: Gateway, jobs: Jobs, metrics: JobMetrics) -> None:
    while True:
        try:
            while await jobs.queue.tidy():
                pass
            metrics.show(await jobs.queue.counts())
        except StoreUnavailable as error:
            _LOG.debug("the jobs cannot be tidied now: %s", error)
        except Exception:
            _LOG.exception("the jobs could not be tidied; it is tried again")
        await gateway.clock.sleep(_TIDY_S)
