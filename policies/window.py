"""The recent past of something that is asked again and again: how many of its answers were bad, how many slow.

Bounded twice, by number and by age: a busy service is judged by its last moments, a quiet one not by last week.
"""

from __future__ import annotations

from collections import deque


class OutcomeWindow:
    """The last ``most`` outcomes, none older than ``age_s``. ``now`` comes from the caller, and never goes back."""

    __slots__ = ("_age_s", "_most", "_outcomes", "bad", "slow")

    def __init__(self, *, most: int, age_s: float) -> None:
        if most < 1 or not age_s > 0:
            raise ValueError(f"most={most} must be at least 1 and age_s={age_s} over 0")
        self._most = most
        self._age_s = age_s
        self._outcomes: deque[tuple[float, bool, bool]] = deque()
        self.bad = 0
        self.slow = 0

    def add(self, now: float, *, bad: bool, slow: bool = False) -> None:
        """Take one outcome in."""
        if len(self._outcomes) >= self._most:
            self._drop()
        self._outcomes.append((now, bad, slow))
        self.bad += bad
        self.slow += slow
        self.forget(now)

    def forget(self, now: float) -> None:
        """Drop what is too old."""
        while self._outcomes and self._outcomes[0][0] <= now - self._age_s:
            self._drop()

    def clear(self) -> None:
        """Drop everything."""
        self._outcomes.clear()
        self.bad = self.slow = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def bad_share(self) -> float:
        """Return the share of bad outcomes; 0 when there is none at all."""
        return self.bad / len(self._outcomes) if self._outcomes else 0.0

    @property
    def slow_share(self) -> float:
        """Return the share of slow outcomes; 0 when there is none at all."""
        return self.slow / len(self._outcomes) if self._outcomes else 0.0

    def _drop(self) -> None:
        _, bad, slow = self._outcomes.popleft()
        self.bad -= bad
        self.slow -= slow
