"""Many seeds at once, on as many cores as there are, so that a thousand take about a minute."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager

from tests.simulation.world import run_world


def broken_in(seeds: Iterable[int]) -> list[str]:
    """Return what the first broken invariant of each failing seed says, and how to see it again."""
    broken = []
    for seed in seeds:
        report = run_world(seed)
        if report.violations:
            one = report.violations[0]
            text = f"{one.invariant}: {one.text}"
            broken.append(f"{text}\n    replay: python -m tests.simulation --seed {seed}")
    return broken


@contextmanager
def in_background(
    chunks: Iterable[range], workers: int | None = None
) -> Iterator[dict[int, Future[list[str]]]]:
    """Run the chunks of seeds in processes of their own; give the results to come by the first seed of each."""
    context = multiprocessing.get_context("spawn")
    count = workers or max(1, min(2, os.cpu_count() or 1))
    with ProcessPoolExecutor(max_workers=count, mp_context=context) as pool:
        try:
            yield {chunk.start: pool.submit(broken_in, chunk) for chunk in chunks}
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
