"""Numbers in words: one way to write a rate, a duration or an interval, for checks, reports and tables."""

from __future__ import annotations

import math
import re
from typing import Final

from chaos.slo import Estimate

_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
UNKNOWN = "not measured"
NEVER = "never"


def number(value: float | None, unit: str = "") -> str:
    """Return a value with its unit: ratios as per cent, seconds with three significant digits."""
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return NEVER
    if unit == "ratio":
        return f"{_trim(value * 100, 1)} %"
    if unit == "points":
        return f"{_trim(value * 100, 1)} points"
    if unit == "s":
        return f"{_digits(value)} s"
    if unit == "x":
        return f"{_digits(value)}×"
    return f"{_digits(value)} {unit}".strip()


def _trim(value: float, places: int) -> str:
    # A share just below 1 must not be rounded up to 100 %.
    if value < 100 < value + 10**-places / 2:
        value = 100 - 10**-places
    return f"{value:.{places}f}".rstrip("0").rstrip(".") if places else f"{value:.0f}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 4)}f}"


def interval(estimate: Estimate) -> str:
    """Return ``97.4 to 100 %``; empty when there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = number(estimate.low, estimate.unit), number(estimate.high, estimate.unit)
    unit = low.rsplit(" ", 1)[-1] if " " in low else ""
    if unit and high.endswith(f" {unit}"):
        low = low[: -len(unit) - 1]
    elif low.endswith("×") and high.endswith("×"):
        low = low[:-1]
    return f"{low} to {high}"


def estimate(value: Estimate) -> str:
    """Return a value with its interval in brackets."""
    within = interval(value)
    text = number(value.value, value.unit)
    return f"{text} [{within}]" if within else text


def count(n: int, one: str, many: str = "") -> str:
    """Return ``1 call``, ``2 calls``."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def clean(text: str) -> str:
    """Return a text without the characters that no XML or HTML may hold; each becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)
