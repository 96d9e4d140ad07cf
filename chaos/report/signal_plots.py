"""Charts of what the gateway and the replicas said of themselves: attempts, and the sampled signals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from chaos.early_warning import SignalSpec
from chaos.report.lane import HEIGHT, LEFT, RIGHT, WIDTH, Lane, chart
from chaos.report.plots import Row, bar, bin_of, bin_s, y_scale
from chaos.report.svg import el, path
from chaos.text import number


def attempts(lanes: Sequence[Lane]) -> Row:
    """Return upstream attempts each second, first ones and repeated ones: retry amplification."""
    binned = []
    for lane in lanes:
        bins: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        known = {call.request_id for call in lane.arm.calls}
        for attempt in lane.arm.attempts():
            if attempt.request_id not in known:
                continue  # the runner's own probes
            bins[bin_of(lane, attempt.started_at, bin_s(lane))][attempt.attempt > 1] += 1
        binned.append((lane, bins))
    y = y_scale(max((sum(b) / bin_s(lane) for lane, bins in binned for b in bins.values()), default=1.0))
    pictures = []
    for lane, bins in binned:
        width, marks = bin_s(lane), []
        for index, (first, again) in sorted(bins.items()):
            title = f"{index * width:g} to {(index + 1) * width:g} s: {first} first, {again} repeated"
            marks.append(bar(lane, index * width, width, y, 0, first / width, "o-ok", title))
            if again:
                marks.append(
                    bar(
                        lane,
                        index * width,
                        width,
                        y,
                        first / width,
                        (first + again) / width,
                        "o-refused",
                        title,
                    )
                )
        total, repeated = sum(sum(b) for b in bins.values()), sum(b[1] for b in bins.values())
        label = f"Arm {lane.arm.name}, attempts at replicas: {total}, of them {repeated} repeated."
        pictures.append(chart(lane, y, "attempts/s", label, marks))
    says = "Attempts at replicas: first (blue) and repeated (orange). Retries that outgrow the calls are a retry storm."
    return Row("Retry amplification", says, tuple(pictures))


def signal(lanes: Sequence[Lane], spec: SignalSpec) -> Row:
    """Return one sampled signal; where it could not be sampled the line has a gap."""
    values = [
        value
        for lane in lanes
        for record in lane.arm.signals
        if (value := getattr(record, spec.name)) is not None and math.isfinite(value)
    ]
    percent = spec.unit == "ratio"
    low, high = min([0.0, *values]), max([*values, 0.05 if percent else 0.1 if spec.unit == "s" else 1.0])
    y = y_scale(high, low, percent)
    pictures = []
    for lane in lanes:
        points: list[tuple[float, float] | None] = []
        last: float | None = None
        seen: list[float] = []
        for record in lane.arm.signals:
            value = getattr(record, spec.name)
            if value is None or not math.isfinite(value):
                points.append(None)
                last = None
                continue
            seen.append(value)
            x = lane.scale.at(min(max(lane.x(record.at), lane.start_s), lane.end_s))
            if spec.name == "live_replicas" and last is not None:
                points.append((x, y.at(last)))
            points.append((x, y.at(value)))
            last = value
        marks = [path(points, "line main")]
        if not seen:
            marks = [el("text", "no samples", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT / 2, class_="none")]
        reach = f"{number(min(seen), spec.unit)} to {number(max(seen), spec.unit)}" if seen else "no samples"
        label = f"Arm {lane.arm.name}, {spec.title}: {reach}."
        pictures.append(chart(lane, y, "share" if percent else spec.unit, label, marks))
    return Row(spec.title, spec.meaning[0].upper() + spec.meaning[1:] + ".", tuple(pictures))
