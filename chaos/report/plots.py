"""The charts: each takes all lanes and returns one picture a lane, so that every arm has the same scales."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from chaos import slo
from chaos.history import CallRecord
from chaos.report.lane import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Lane, chart
from chaos.report.svg import Scale, el, linear, logarithmic, path, round_step
from chaos.text import number

OUTCOMES: Final = ("ok", "degraded", "deferred_done", "deferred", "refused", "late", "failed")
"""In the order in which they are stacked, the worst on top."""
MOST_BINS: Final = 60
MOST_TITLES: Final = 1500
"""Above so many calls the points carry no tooltips, to keep the page small."""
_FLOOR: Final = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page: the same chart for every lane."""

    title: str
    says: str
    pictures: tuple[Markup, ...]


def bin_s(lane: Lane) -> float:
    """Return the width of a time bin: one second, or more when the run is long."""
    span = lane.end_s - lane.start_s
    return 1.0 if span <= MOST_BINS else max(1.0, round_step(span, MOST_BINS))


def bin_of(lane: Lane, at: float, width: float) -> int:
    """Return the number of the bin of a moment; bin 0 begins at the scheduled fault."""
    return math.floor(lane.x(at) / width)


def y_scale(high: float, low: float = 0.0, percent: bool = False) -> Scale:
    """Return the vertical scale of a chart, from its floor to its top."""
    return linear(low, high, _FLOOR, TOP, percent=percent)


def bar(
    lane: Lane, start_s: float, width_s: float, y: Scale, low: float, high: float, class_: str, title: str
) -> Markup:
    """Return one bar of a stack: ``width_s`` seconds wide, from ``low`` to ``high`` on the scale."""
    left, right = (lane.scale.at(min(max(s, lane.start_s), lane.end_s)) for s in (start_s, start_s + width_s))
    top = y.at(high)
    return el(
        "rect", el("title", title), x=left + 0.5, y=top, width=max(right - left - 1, 0.8), height=y.at(low) - top,
        class_=class_,
    )  # fmt: skip


def _counted_mark(lane: Lane) -> list[Markup]:
    if lane.counted is None:
        return []
    left, right = (lane.scale.at(min(max(edge, lane.start_s), lane.end_s)) for edge in lane.counted)
    return [
        el("path", d=f"M{left:.1f} {TOP - 1}v-4H{right:.1f}v4", class_="counted"),
        el("text", "counted calls", x=(left + right) / 2, y=TOP - 8, class_="counted-name"),
    ]


def outcomes(lanes: Sequence[Lane]) -> Row:
    """Return calls by outcome, by the second of their scheduled arrival."""
    binned = []
    for lane in lanes:
        width = bin_s(lane)
        bins: dict[int, Counter[str]] = defaultdict(Counter)
        for call in lane.arm.calls:
            bins[bin_of(lane, call.scheduled_at, width)][call.outcome] += 1
        binned.append((lane, width, bins))
    y = y_scale(
        max((sum(c.values()) / width for _, width, bins in binned for c in bins.values()), default=1.0)
    )
    pictures = []
    for lane, width, bins in binned:
        marks: list[Markup] = []
        for index, counts in sorted(bins.items()):
            start, base = index * width, 0.0
            told = ", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o])
            for outcome in OUTCOMES:
                if counts[outcome]:
                    top = base + counts[outcome] / width
                    title = f"{start:g} to {start + width:g} s: {told}"
                    marks.append(bar(lane, start, width, y, base, top, f"o-{outcome}", title))
                    base = top
        everything = Counter(call.outcome for call in lane.arm.calls)
        said = ", ".join(f"{everything[o]} {o}" for o in OUTCOMES if everything[o]) or "no calls"
        label = f"Arm {lane.arm.name}, calls by outcome over time: {said}."
        pictures.append(chart(lane, y, "calls/s", label, [*marks, *_counted_mark(lane)]))
    says = "By the second in which a call was due to be sent, whatever became of it and whenever it ended."
    return Row("Calls by outcome", says, tuple(pictures))


def _rolling_p95(lane: Lane, y: Scale) -> Markup:
    width = max(2.0, bin_s(lane))
    bins: dict[int, list[float]] = defaultdict(list)
    for call in lane.arm.calls:
        if (value := slo.ttft_s(call)) is not None:
            bins[bin_of(lane, call.scheduled_at, width)].append(value)
    points: list[tuple[float, float] | None] = []
    for index in range(min(bins, default=0), max(bins, default=-1) + 1):
        value = slo.percentile(bins[index], 0.95) if bins.get(index) else math.inf
        middle = min(max((index + 0.5) * width, lane.start_s), lane.end_s)
        points.append((lane.scale.at(middle), y.at(value)) if math.isfinite(value) else None)
    return path(points, "line p95")


def _dot(lane: Lane, call: CallRecord, y: Scale, value: float, titled: bool) -> Markup:
    x = lane.scale.at(lane.x(call.scheduled_at))
    wait = number(value, "s") if math.isfinite(value) else "never"
    where = f", {call.replica}" if call.replica else ""
    title = [el("title", f"call {call.n}: {call.outcome}, first token {wait}{where}")] if titled else []
    if math.isfinite(value):
        return el("circle", *title, cx=x, cy=y.at(value), r=2.1, class_=f"dot o-{call.outcome}")
    return el("path", *title, d=f"M{x - 3:.1f} {TOP + 3}l6 6m0-6l-6 6", class_=f"cross s-{call.outcome}")


def ttft(lanes: Sequence[Lane], limit_s: float | None) -> Row:
    """Return TTFT by scheduled arrival, with its p95 and the objective's limit."""
    samples = {
        lane.arm.name: [(c, v) for c in lane.arm.calls if (v := slo.ttft_s(c)) is not None] for lane in lanes
    }
    finite = [v for pairs in samples.values() for _, v in pairs if math.isfinite(v)]
    limits = [limit_s] if limit_s is not None and math.isfinite(limit_s) and limit_s > 0 else []
    low, high = min([*finite, *limits], default=0.01), max([*finite, *limits], default=1.0)
    y = logarithmic(low, high, _FLOOR, TOP + 16)
    pictures = []
    for lane in lanes:
        pairs = samples[lane.arm.name]
        titled = len(pairs) <= MOST_TITLES
        behind = []
        if limits:
            at = y.at(limits[0])
            behind.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="limit"))
            behind.append(
                el("text", f"limit {number(limits[0], 's')}", x=LEFT + 4, y=at - 4, class_="limit-name")
            )
        never = sum(1 for _, v in pairs if math.isinf(v))
        if never:
            behind.append(el("text", "no first token", x=WIDTH - RIGHT, y=TOP - 4, class_="unit end"))
        marks = [_dot(lane, c, y, v, titled) for c, v in pairs]
        known = [v for _, v in pairs if math.isfinite(v)]
        worst = number(max(known), "s") if known else "none"
        label = f"Arm {lane.arm.name}, time to first token: longest {worst}, {never} streams without one."
        pictures.append(chart(lane, y, "TTFT in s (log)", label, [*marks, _rolling_p95(lane, y)], behind))
    says = "A dot is a stream, from scheduled send to first token; the line is the p95 of two seconds; × got none."
    return Row("Time to first token", says, tuple(pictures))


def gaps(lanes: Sequence[Lane]) -> Row:
    """Return the gaps between tokens: p50, p99 and the longest, by the second in which a gap ended."""
    binned = []
    for lane in lanes:
        bins: dict[int, list[float]] = defaultdict(list)
        for call in lane.arm.calls:
            for at, gap in zip(call.token_at[1:], slo.gaps_s(call), strict=True):
                bins[bin_of(lane, at, bin_s(lane))].append(gap)
        binned.append((lane, bins))
    y = y_scale(max((max(values) for _, bins in binned for values in bins.values()), default=0.1))
    pictures = []
    for lane, bins in binned:
        width = bin_s(lane)
        lines: dict[str, list[tuple[float, float] | None]] = {"p50": [], "p99": [], "longest": []}
        for index in range(min(bins, default=0), max(bins, default=-1) + 1):
            x = lane.scale.at(min(max((index + 0.5) * width, lane.start_s), lane.end_s))
            for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
                found = bins.get(index)
                lines[name].append((x, y.at(slo.percentile(found, share))) if found else None)
        worst = max((max(values) for values in bins.values()), default=None)
        label = f"Arm {lane.arm.name}, gaps between tokens: longest {number(worst, 's')}."
        marks = [
            path(lines["longest"], "line faint"),
            path(lines["p99"], "line p95"),
            path(lines["p50"], "line main"),
        ]
        pictures.append(chart(lane, y, "gap in s", label, marks))
    says = "Inside streams: p50 (blue), p99 (dark) and the longest gap (dotted) of each second."
    return Row("Gaps between tokens (ITL)", says, tuple(pictures))
