"""A few lines of SVG: escaped elements, scales, round ticks. Drawn here, so that the page needs no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from chaos.text import clean

Attribute = str | float | None


def fmt(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def el(tag: str, *children: str | Markup, **attributes: Attribute) -> Markup:
    """Return an element; texts and values are escaped, ``font_size`` becomes ``font-size``, None is left out."""
    parts = []
    for key, value in attributes.items():
        if value is not None:
            text = fmt(value) if isinstance(value, int | float) else clean(value)
            parts.append(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    opened = f"<{tag}{''.join(parts)}"
    if not children:
        return Markup(opened + " />")
    inner = Markup("").join(
        child if isinstance(child, Markup) else escape(clean(child)) for child in children
    )
    return Markup(f"{opened}>") + inner + Markup(f"</{tag}>")


def picture(width: float, height: float, label: str, children: Iterable[Markup]) -> Markup:
    """Return an ``svg`` that scales with its column; ``label`` is what a screen reader says instead of it."""
    return el(
        "svg",
        *children,
        viewBox=f"0 0 {fmt(width)} {fmt(height)}",
        role="img",
        aria_label=label,
        class_="plot",
    )


def path(points: Iterable[tuple[float, float] | None], class_: str) -> Markup:
    """Return a line through points; None lifts the pen. A point on its own becomes a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            pieces.append([])
        else:
            pieces[-1].append(point)
    drawn = []
    for piece in pieces:
        if len(piece) == 1:
            drawn.append(f"M{fmt(piece[0][0])} {fmt(piece[0][1])}h.1")
        elif piece:
            drawn.append("M" + "L".join(f"{fmt(x)} {fmt(y)}" for x, y in piece))
    return el("path", d="".join(drawn), class_=class_) if drawn else Markup("")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to coordinates, with the ticks to write beside them."""

    at: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]
    low: float
    high: float


def _label(value: float, step: float) -> str:
    places = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    return f"{value:,.{places}f}".replace("-", "−")


def round_step(span: float, about: int) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that cuts ``span`` into about so many parts."""
    rough = span / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


def linear(low: float, high: float, start: float, end: float, about: int = 4, percent: bool = False) -> Scale:
    """Return a linear scale whose domain is widened to round ticks; coordinates run from ``start`` to ``end``."""
    if not high > low:
        high = low + 1
    step = round_step(high - low, about)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    values = [low + i * step for i in range(round((high - low) / step) + 1)]
    if percent:
        ticks = tuple((v, f"{_label(v * 100, step * 100)} %") for v in values)
    else:
        ticks = tuple((v, _label(v, step)) for v in values)
    return Scale(lambda v: start + (v - low) / (high - low) * (end - start), ticks, low, high)


def fixed(low: float, high: float, start: float, end: float, about: int = 9) -> Scale:
    """Return a linear scale with exactly this domain and round ticks inside it: for time."""
    if not high > low:
        high = low + 1
    step = round_step(high - low, about)
    first = math.ceil(low / step - 1e-9)
    values = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
    ticks = tuple((v, _label(v, step)) for v in values)
    return Scale(lambda v: start + (v - low) / (high - low) * (end - start), ticks, low, high)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return a logarithmic scale with ticks at 1, 2 and 5 times powers of ten."""
    low = max(low, 1e-6)
    high = max(high, low * 2)
    steps = [m * 10.0**p for p in range(-6, 7) for m in (1, 2, 5)]
    low = max(s for s in steps if s <= low * 1.0001)
    high = min(s for s in steps if s >= high * 0.9999)
    ticks = [s for s in steps if low * 0.9999 <= s <= high * 1.0001]
    if len(ticks) > 7:
        ticks = [s for s in ticks if round(math.log10(s), 6).is_integer()]
    span = math.log(high / low)
    return Scale(
        lambda v: start + math.log(min(max(v, low), high) / low) / span * (end - start),
        tuple((s, f"{s:g}") for s in ticks),
        low,
        high,
    )
