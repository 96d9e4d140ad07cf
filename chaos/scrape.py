"""Reads a few metrics out of a Prometheus page. Pure: text in, numbers out.

A vLLM page has over a thousand lines and is read about once a second from every replica, on a machine whose
cores also run the replicas: so only the wanted lines are handed to the parser.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a page; ``labels`` are sorted pairs."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str:
        """Return the value of a label, or an empty text."""
        return dict(self.labels).get(name, "")


def samples(page: str, wanted: Collection[str]) -> list[Sample]:
    """Return the samples whose name, without ``_bucket``, ``_sum`` or ``_count``, is in ``wanted``."""
    lines = []
    for line in page.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in wanted or name.rsplit("_", 1)[0] in wanted:
            lines.append(line)
    found = []
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found.append(Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value)))
    return found


def declares(page: str, name: str) -> bool:
    """Tell whether the page knows the metric; a labelled counter that never counted has a type but no sample."""
    bare = name.removesuffix("_total")
    return f"# TYPE {name} " in page or f"# TYPE {bare} " in page


def total(found: Collection[Sample], name: str) -> float | None:
    """Return the sum over all labels, or None when the page has no such metric."""
    values = [sample.value for sample in found if sample.name == name]
    return sum(values) if values else None


def buckets(found: Collection[Sample], name: str) -> dict[float, float]:
    """Return a histogram's cumulative counts by upper bound, summed over all other labels."""
    counts: dict[float, float] = {}
    for sample in found:
        if sample.name == f"{name}_bucket":
            bound = float(sample.label("le"))
            counts[bound] = counts.get(bound, 0.0) + sample.value
    return counts


def quantile(share: float, before: dict[float, float], after: dict[float, float]) -> float | None:
    """Return a quantile of what a histogram counted between two readings, linear within its bucket.

    None when nothing was counted, or when the counter began again in between. In the last bucket, which has
    no upper bound, the answer is its lower bound.
    """
    bounds = sorted(after)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    if not counts or counts[-1] <= 0 or min(counts) < 0:
        return None
    rank = share * counts[-1]
    lower, below = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= rank:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * ((rank - below) / (count - below) if count > below else 1.0)
        lower, below = bound, count
    return lower


def increase(before: float | None, after: float | None) -> float | None:
    """Return how much a counter grew; None when a reading is missing or the counter began again."""
    if before is None or after is None or after < before:
        return None
    return after - before
