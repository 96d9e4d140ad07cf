"""One objective over all arms: value, interval and limit as marks on a line, so that "how sure" is seen at a glance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from chaos.measures import ObjectiveResult
from chaos.report.svg import Scale, el, linear, picture
from chaos.text import number

WIDTH, ROW, TOP, BOTTOM = 560.0, 34.0, 22.0, 26.0
LEFT, RIGHT = 196.0, 104.0


def _scale(results: Sequence[ObjectiveResult], unit: str) -> Scale:
    seen = [
        value
        for r in results
        for value in (r.value.value, r.value.low, r.value.high, r.limit)
        if value is not None and math.isfinite(value)
    ]
    low, high = min(seen, default=0.0), max(seen, default=1.0)
    if unit != "ratio":
        low = 0.0
    else:
        low -= (high - low) * 0.15 or 0.05
    return linear(low, high, LEFT, WIDTH - RIGHT, about=3, percent=unit == "ratio")


def _row(result: ObjectiveResult, y: float, x: Scale) -> list[Markup]:
    value, low, high = result.value.value, result.value.low, result.value.high
    drawn = [
        el("text", result.arm, x=0, y=y + 4, class_="forest-arm"),
        el("text", number(value, result.value.unit), x=LEFT - 16, y=y + 4, class_="forest-value"),
    ]
    kind = "kept" if result.standing in ("kept", "reference") else result.standing
    if low is not None and high is not None:
        end = x.at(x.high) + 6 if math.isinf(high) else x.at(high)
        start = min(x.at(x.high) if math.isinf(low) else x.at(low), end)
        drawn.append(el("line", x1=start, x2=end, y1=y, y2=y, class_=f"interval {kind}"))
        drawn.append(el("line", x1=start, x2=start, y1=y - 4, y2=y + 4, class_=f"interval {kind}"))
        if math.isinf(high):
            drawn.append(el("path", d=f"M{end - 5:.1f} {y - 5:.1f}l6 5l-6 5", class_=f"interval {kind} open"))
        else:
            drawn.append(el("line", x1=end, x2=end, y1=y - 4, y2=y + 4, class_=f"interval {kind}"))
    if value is not None and math.isfinite(value):
        at = x.at(value)
        if kind == "broken":
            drawn.append(el("path", d=f"M{at:.1f} {y - 6:.1f}l6 6l-6 6l-6-6z", class_=f"point {kind}"))
        else:
            drawn.append(el("circle", cx=at, cy=y, r=5, class_=f"point {kind}"))
    word = {"kept": "kept", "broken": "broken", "reference": "reference", "unknown": "unknown"}[
        result.standing
    ]
    drawn.append(el("text", word, x=WIDTH - 1, y=y + 4, class_=f"forest-word {kind}"))
    return drawn


def forest(results: Sequence[ObjectiveResult]) -> Markup:
    """Return the picture of one objective; ``results`` has one entry an arm."""
    unit = next((r.value.unit for r in results if r.value.unit), "")
    x, height = _scale(results, unit), TOP + ROW * len(results) + BOTTOM
    floor, drawn = height - BOTTOM, []
    for value, text in x.ticks:
        drawn.append(el("line", x1=x.at(value), x2=x.at(value), y1=TOP - 6, y2=floor, class_="grid"))
        drawn.append(
            el(
                "text",
                text if unit == "ratio" else f"{text} {unit}",
                x=x.at(value),
                y=floor + 16,
                class_="tick x",
            )
        )
    limit = next((r.limit for r in results if r.limit is not None), None)
    if limit is not None and math.isfinite(limit):
        at = x.at(limit)
        drawn.append(el("line", x1=at, x2=at, y1=TOP - 6, y2=floor, class_="limit"))
        end = at > WIDTH - RIGHT - 30
        drawn.append(
            el("text", f"limit {number(limit, unit)}", x=at + (3 if end else 0), y=TOP - 10,
               class_="limit-name " + ("end" if end else "middle"))
        )  # fmt: skip
    for index, result in enumerate(results):
        drawn += _row(result, TOP + ROW * (index + 0.5), x)
    said = "; ".join(f"{r.arm} {number(r.value.value, r.value.unit)}, {r.standing}" for r in results)
    name = results[0].objective.describe() if results else "objective"
    return picture(WIDTH, height, f"{name}: {said}", drawn)
