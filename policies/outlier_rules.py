"""What makes a replica an outlier against the others: it fails more of its attempts, or it is slow.

Both rules are relative, because absolute ones eject everybody when all are slow for a reason that they share
(a burst, a cold cache, a busy host). Each wants a margin on top of the ratio and enough samples, so that chance
ejects nobody. They are functions of samples: who is ejected, and for how long, is decided elsewhere, by the
settings that stand here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from statistics import median

from policies.window import OutcomeWindow


def _all_over_zero(rule: object) -> None:
    for one in fields(rule):  # type: ignore[arg-type]
        if not getattr(rule, one.name) > 0:
            raise ValueError(f"{one.name} is {getattr(rule, one.name)}: it must be over 0")


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """A replica whose failed share exceeds the others' median by ``margin`` is an outlier.

    Judged are the last ``most_attempts`` attempts of ``window_s`` seconds, once there are ``least_attempts`` at
    the replica and at another. So with two, the one is held against the other; with one, nobody is.
    """

    least_attempts: int = 12
    most_attempts: int = 100
    window_s: float = 10.0
    margin: float = 0.3

    def __post_init__(self) -> None:
        _all_over_zero(self)
        if self.least_attempts > self.most_attempts:
            raise ValueError(
                f"least_attempts={self.least_attempts} exceeds most_attempts={self.most_attempts}: it never judges"
            )

    def finds(self, own: OutcomeWindow, others: Iterable[OutcomeWindow]) -> str | None:
        """Return the reason for which the replica is an outlier; None when it is none."""
        if len(own) < self.least_attempts or own.bad_share < self.margin:
            return None
        shares = [one.bad_share for one in others if len(one) >= self.least_attempts]
        if not shares or own.bad_share < median(shares) + self.margin:
            return None
        return f"success rate: {own.bad} of {len(own)} attempts failed, elsewhere {median(shares):.0%}"


@dataclass(frozen=True, slots=True)
class Lateness:
    """A first token held against what was expected: ``excess_s`` seconds too late, ``ratio`` times as late."""

    excess_s: float
    ratio: float

    @classmethod
    def of(cls, ttft_s: float, expected_s: float) -> Lateness:
        """Return the lateness of a first token that was expected after ``expected_s``."""
        return cls(ttft_s - expected_s, ttft_s / max(expected_s, 1e-3))


class Latenesses:
    """The recent ones of one replica: at most ``most``, none older than ``age_s``."""

    __slots__ = ("_age_s", "_middle", "_samples")

    def __init__(self, *, age_s: float, most: int) -> None:
        self._age_s = age_s
        self._samples: deque[tuple[float, Lateness]] = deque(maxlen=most)
        self._middle: Lateness | None = None

    def add(self, now: float, lateness: Lateness) -> None:
        """Take one in."""
        self._samples.append((now, lateness))
        self._middle = None

    @property
    def latest(self) -> Lateness | None:
        """The one that came last; None before there is any."""
        return self._samples[-1][1] if self._samples else None

    def middle(self, now: float, *, least: int) -> Lateness | None:
        """Return the median; None with fewer than ``least`` samples."""
        samples = self._samples
        while samples and samples[0][0] <= now - self._age_s:
            samples.popleft()
            self._middle = None
        if len(samples) < least:
            return None
        if self._middle is None:
            self._middle = _median([lateness for _, lateness in samples])
        return self._middle


@dataclass(frozen=True, slots=True)
class LatencyRule:
    """A replica whose first tokens come ``factor`` times and ``margin_s`` later than elsewhere is an outlier.

    A first token is held against what its prompt, and the prompts before it, should take. The median of the last
    ``most_samples`` of ``window_s`` seconds is compared with the median of the others' medians, each of
    ``least_samples`` or more. The fewer samples, the sooner a change is seen and the more often by chance.

    The last one must be late too. After a burst that made all of them late, whoever has had fewer calls since still has
    a bad median when the others' is good again: it would be ejected for what is over, on the news that it is well.
    """

    factor: float = 2.0
    margin_s: float = 0.2
    least_samples: int = 8
    most_samples: int = 12
    window_s: float = 10.0

    def __post_init__(self) -> None:
        _all_over_zero(self)
        if not self.factor >= 1:
            raise ValueError(f"factor is {self.factor}: it must be at least 1")
        if self.least_samples > self.most_samples:
            raise ValueError(
                f"least_samples={self.least_samples} exceeds most_samples={self.most_samples}: it never judges"
            )

    def finds(self, own: Latenesses, others: Iterable[Latenesses], now: float) -> str | None:
        """Return the reason for which the replica is an outlier; None when it is none."""
        middle = own.middle(now, least=self.least_samples)
        usual = None if middle is None else self.usual(others, now)
        if middle is None or usual is None or not self.is_late(middle, usual):
            return None
        if own.latest is not None and not self.is_late(own.latest, usual):
            return None
        return f"latency: first tokens come {middle.excess_s - usual.excess_s:.2f} s later than elsewhere"

    def usual(self, others: Iterable[Latenesses], now: float) -> Lateness | None:
        """Return what is usual elsewhere; None when too little is known."""
        middles = [one.middle(now, least=self.least_samples) for one in others]
        known = [one for one in middles if one is not None]
        return _median(known) if known else None

    def is_late(self, one: Lateness, usual: Lateness) -> bool:
        """Tell whether this is too late, measured by what is usual."""
        return one.ratio >= self.factor * usual.ratio and one.excess_s >= usual.excess_s + self.margin_s


def _median(samples: Sequence[Lateness]) -> Lateness:
    """Return the median (of an even number, the upper one of the two in the middle), each part for itself."""
    middle = len(samples) // 2
    return Lateness(
        sorted([one.excess_s for one in samples])[middle], sorted([one.ratio for one in samples])[middle]
    )


@dataclass(frozen=True, slots=True)
class OutlierSettings:
    """What ejects, for how long, and how a replica comes back; durations in seconds.

    ``consecutive_errors`` eject; a time-out on headers counts ``silent_errors`` times, because headers wait for
    nothing in a healthy replica. The first ejection lasts ``base_s``, each further one twice as long, at most
    ``max_s``; ``jitter`` spreads it by that share either way. At least ``floor_share`` of the known replicas,
    rounded up and never less than one, stay in full service. On trial a replica gets at most ``probes`` attempts at
    a time, each with a lease of ``lease_s``; ``good_probes`` end the trial, a failed or ``late_probes`` late ones
    eject again.
    """

    consecutive_errors: int = 3
    silent_errors: int = 2
    base_s: float = 5.0
    max_s: float = 60.0
    jitter: float = 0.2
    floor_share: float = 0.3
    probes: int = 1
    good_probes: int = 3
    late_probes: int = 2
    lease_s: float = 10.0
    success: SuccessRule = field(default_factory=SuccessRule)
    latency: LatencyRule = field(default_factory=LatencyRule)

    def __post_init__(self) -> None:
        for name in ("consecutive_errors", "silent_errors", "probes", "good_probes", "late_probes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.base_s <= self.max_s:
            raise ValueError(f"base_s={self.base_s} must be over 0 and at most max_s={self.max_s}")
        if not (0 <= self.jitter < 1 and 0 < self.floor_share <= 1):
            raise ValueError(
                f"jitter={self.jitter} must be in [0, 1), floor_share={self.floor_share} in (0, 1]"
            )
        if not self.lease_s > 0:
            raise ValueError(f"lease_s is {self.lease_s}: it must be over 0")
