"""What a bench makes of its samples: ratios of arms that ran in turn, round by round, with the goal beside. Pure.

A figure of one arm alone says as much about the machine and its other work as about the arm. So each round gives
a ratio of its own, and the median of those is what is held against a goal; the single ones show how far to trust it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

ABSENT: Final = "-"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one arm did in one round, within the window in which every caller had a call open."""

    arm: str
    window_s: float
    tokens: float
    """Output tokens that arrived in the window."""
    calls: int
    """Calls that ended in the window."""
    ttft_s: tuple[float, ...]
    """Times to first token of the calls that were sent in the window."""
    unwhole: int = 0
    """Calls that failed, were refused or got less than they asked for, in the whole round."""
    cpu_s: float | None = None
    """CPU time in the window of what stands between client and replicas; None where nothing does."""
    idle: float | None = None
    """Share of the machine's CPU time in the window that nobody used."""

    def __str__(self) -> str:
        return (
            f"{self.arm:<12} {self.tokens_per_s:7.1f} tokens/s in {self.window_s:.1f} s, "
            f"TTFT p50 {1e3 * self.ttft_p50_s:.1f} ms"
            + ("" if self.idle is None else f", machine {100 * self.idle:.0f} % idle")
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.window_s

    @property
    def ttft_p50_s(self) -> float:
        return statistics.median(self.ttft_s)

    @property
    def cpu_us_per_token(self) -> float | None:
        return None if self.cpu_s is None else 1e6 * self.cpu_s / self.tokens

    @property
    def cpu_us_per_call(self) -> float | None:
        return None if self.cpu_s is None else 1e6 * self.cpu_s / self.calls


Figure = Callable[[Sample], float | None]
"""One number of a sample; None where the arm has none."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the ratio of a figure between two arms."""

    name: str
    figure: Figure
    arm: str
    base: str
    bound: float
    at_least: bool = False

    def met_by(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


def of_arm(samples: Iterable[Sample], arm: str) -> list[Sample]:
    """Return the samples of an arm in the order of their rounds."""
    return [sample for sample in samples if sample.arm == arm]


def ratios(samples: Sequence[Sample], figure: Figure, arm: str, base: str) -> list[float]:
    """Return the figure of ``arm`` over that of ``base``, one a round; empty where one of them has none.

    Raises:
        ValueError: the arms have not run equally often, so that their rounds cannot be paired.
    """
    above, below = of_arm(samples, arm), of_arm(samples, base)
    if len(above) != len(below):
        raise ValueError(f"{arm} ran {len(above)} times and {base} {len(below)} times: no pairs of rounds")
    found = []
    for one, other in zip(above, below, strict=True):
        a, b = figure(one), figure(other)
        if a is not None and b:
            found.append(a / b)
    return found


def verdict(samples: Sequence[Sample], goal: Goal) -> tuple[bool, str]:
    """Return whether a goal is met by the median of the rounds, and the line that says so.

    An arm that did not give every call its whole answer has met nothing: it was quick because it did less.
    """
    each = ratios(samples, goal.figure, goal.arm, goal.base)
    if not each:
        return False, f"goal missed  {goal.name}: not measured"
    ratio = statistics.median(each)
    unwhole = sum(one.unwhole for one in of_arm(samples, goal.arm))
    met = goal.met_by(ratio) and not unwhole
    sign = ">=" if goal.at_least else "<="
    rounds = " ".join(f"{one:.3f}" for one in each)
    said = f"goal {'met' if met else 'missed':<6}  {goal.name}: {ratio:.3f} "
    said += f"(goal {sign} {goal.bound:g}; rounds {rounds})"
    return met, said + (f"; {unwhole} calls were not answered whole" if unwhole else "")


def table(samples: Sequence[Sample], base: str) -> list[str]:
    """Return one line an arm: medians over the rounds, and beside them the median ratio to ``base``."""
    lines = [
        f"{'arm':<12} {'tokens/s':>9} {'of ' + base:>10} {'TTFT p50':>9} {'of ' + base:>10} "
        f"{'CPU/token':>10} {'CPU/call':>10} {'not whole':>10} {'idle':>5}"
    ]
    for arm in dict.fromkeys(sample.arm for sample in samples):
        own = of_arm(samples, arm)
        speed = statistics.median(one.tokens_per_s for one in own)
        first = statistics.median(one.ttft_p50_s for one in own)
        lines.append(
            f"{arm:<12} {speed:>9.1f} {_of(samples, lambda one: one.tokens_per_s, arm, base):>10} "
            f"{1e3 * first:>6.1f} ms {_of(samples, lambda one: one.ttft_p50_s, arm, base):>10} "
            f"{_us(own, lambda one: one.cpu_us_per_token):>10} {_us(own, lambda one: one.cpu_us_per_call):>10} "
            f"{sum(one.unwhole for one in own):>10} {_share(own, lambda one: one.idle):>5}"
        )
    return lines


def _of(samples: Sequence[Sample], figure: Figure, arm: str, base: str) -> str:
    each = ratios(samples, figure, arm, base)
    return f"{statistics.median(each):.3f}" if each else ABSENT


def _share(samples: Sequence[Sample], figure: Figure) -> str:
    each = [value for value in map(figure, samples) if value is not None]
    return f"{100 * statistics.median(each):.0f} %" if each else ABSENT


def _us(samples: Sequence[Sample], figure: Figure) -> str:
    each = [value for value in map(figure, samples) if value is not None]
    return f"{statistics.median(each):.0f} us" if each else ABSENT
