"""How many sequences a replica should be given at once, as a number that follows what it does.

A limit computes a number and a limiter enforces it: nothing here waits, counts permits or reads a clock. The
number goes up by addition and down by multiplication (AIMD, as in TCP and in Netflix's concurrency-limits).
What it is fed makes it fit for generation: the time to first token *normalised* by what the prefill takes at a
replica with a free slot, and the normalised time per output token. End-to-end latency is never looked at: it
says how much was asked for, not how crowded it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a permit or an attempt is closed."""

    SUCCESS = "success"
    IGNORED = "ignored"
    """It says nothing about load: the caller left, the call was wrong, the replica died."""
    DROPPED = "dropped"
    """A time-out, or an answer that there is no room: always a sign of load."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one attempt shows; a ratio of 1 is a replica with free slots, None is not known.

    ``in_use`` are the sequences that the replica held when the attempt began, its own included; ``started_at``
    is when that was, in the clock's seconds.
    """

    started_at: float
    in_use: int
    outcome: Outcome = Outcome.SUCCESS
    ttft_ratio: float | None = None
    tpot_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds are in sequences; None takes them from the replica's batch slots.

    ``initial`` is 1.25 times and ``most`` 4 times the slots unless given. A first token ``slow_ttft`` times as
    late as at a free slot, or output tokens ``slow_tpot`` times as slow as usual, multiply the limit by
    ``backoff``; a drop multiplies it by ``drop_backoff``; neither more than once in ``cool_down_s``. Both
    slowness and growth count only while at least ``in_use_share`` of the limit is in use.
    """

    initial: float | None = None
    least: float = 1.0
    most: float | None = None
    slow_ttft: float = 5.0
    slow_tpot: float = 2.5
    backoff: float = 0.9
    drop_backoff: float = 0.7
    cool_down_s: float = 1.0
    in_use_share: float = 0.5

    def __post_init__(self) -> None:
        if not self.least >= 1:
            raise ValueError(
                f"least is {self.least}: a replica gets at least 1 sequence, or it is never tried"
            )
        for name in ("initial", "most"):
            value = getattr(self, name)
            if value is not None and not value >= self.least:
                raise ValueError(f"{name} is {value}: it must be at least least={self.least}")
        if self.initial is not None and self.most is not None and self.initial > self.most:
            raise ValueError(f"initial is {self.initial}: it must be at most most={self.most}")
        for name in ("slow_ttft", "slow_tpot"):
            if not getattr(self, name) > 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 1, which is no slowness")
        for name in ("backoff", "drop_backoff"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be between 0 and 1")
        if not (self.cool_down_s >= 0 and 0 <= self.in_use_share <= 1):
            raise ValueError(
                f"cool_down_s={self.cool_down_s} must be at least 0, in_use_share={self.in_use_share} in [0, 1]"
            )


class Limit:
    """A limit that never moves; the template for another one."""

    def __init__(self, value: float) -> None:
        if not value >= 1:
            raise ValueError(f"value is {value}: a limit is at least 1")
        self._value = value

    @property
    def value(self) -> float:
        """Return the limit in sequences."""
        return self._value

    def sample(self, sample: Sample, now: float) -> str:
        """Learn from an attempt; return why the limit was lowered, or nothing when it was not."""
        return ""


class AimdLimit(Limit):
    """Additive increase, multiplicative decrease, between two bounds.

    It grows by one sequence in the time in which as many first tokens come as it has sequences (twice as fast
    as that, and then twice again, while it is below half of where it began: an engine's slots do not shrink,
    so what lies there is a recovery). An attempt that began before the last decrease cannot lower the limit
    again: it has seen the old one.
    """

    def __init__(self, slots: int, settings: LimitSettings | None = None) -> None:
        self._settings = settings or LimitSettings()
        least = self._settings.least
        self._most = max(least, self._settings.most or 4.0 * slots)
        self._initial = min(self._most, max(least, self._settings.initial or 1.25 * slots))
        super().__init__(self._initial)
        self._lowered_at = float("-inf")

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the least and the most that it can be."""
        return self._settings.least, self._most

    def sample(self, sample: Sample, now: float) -> str:
        settings = self._settings
        if sample.outcome is Outcome.DROPPED:
            return self._lower(sample, now, settings.drop_backoff, "drop")
        if sample.in_use < settings.in_use_share * self._value:
            return ""
        if sample.ttft_ratio is not None and sample.ttft_ratio > settings.slow_ttft:
            return self._lower(sample, now, settings.backoff, "ttft")
        if sample.tpot_ratio is not None and sample.tpot_ratio > settings.slow_tpot:
            return self._lower(sample, now, settings.backoff, "tpot")
        if sample.outcome is Outcome.SUCCESS and sample.ttft_ratio is not None:
            step = 1.0 if self._value < self._initial / 2 else 1.0 / self._value
            self._value = min(self._most, self._value + step)
        return ""

    def _lower(self, sample: Sample, now: float, factor: float, reason: str) -> str:
        if sample.started_at < self._lowered_at or now - self._lowered_at < self._settings.cool_down_s:
            return ""
        self._lowered_at = now
        self._value = max(self._settings.least, self._value * factor)
        return reason
