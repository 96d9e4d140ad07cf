"""Who may use how much of a limit: a share for each priority that less important ones cannot take.

Strict priority in the queue alone comes too late: low-priority work that arrived first holds every slot, and
the critical call waits for one to end. So part of the limit is kept free for more important classes. Two
things keep that from wasting it: a share is held only for a class that has been seen lately, and only whole
sequences are held, so that a small limit is never reserved away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.priority import Priority


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """``reserved`` is the share of the limit kept for each priority, the most important first.

    Less important classes cannot use it, more important ones can. It is held for ``hold_s`` after the last
    call of the class.
    """

    reserved: tuple[float, float, float, float] = (0.1, 0.1, 0.1, 0.0)
    hold_s: float = 30.0

    def __post_init__(self) -> None:
        if len(self.reserved) != len(Priority) or not all(share >= 0 for share in self.reserved):
            raise ValueError(f"reserved is {self.reserved}: give {len(Priority)} shares of at least 0")
        if not sum(self.reserved) < 1:
            raise ValueError(f"reserved is {self.reserved}: together they must be less than the whole limit")
        if not self.hold_s >= 0:
            raise ValueError(f"hold_s is {self.hold_s}: it must be at least 0")


class PriorityShares:
    """Counts the sequences in use by priority and says who may have more; pure."""

    def __init__(self, settings: ShareSettings | None = None) -> None:
        self._settings = settings or ShareSettings()
        self._seen_at = [-math.inf] * len(Priority)
        self.in_use = [0] * len(Priority)
        """Sequences in use by priority, the most important first."""
        self.total = 0

    def seen(self, priority: Priority, now: float) -> None:
        """A call of that priority has arrived."""
        self._seen_at[priority] = now

    def kept_from(self, priority: Priority, limit: float, now: float) -> int:
        """Return the sequences that are free, but kept for more important classes."""
        kept = 0.0
        for more in range(priority):
            if now - self._seen_at[more] <= self._settings.hold_s:
                kept += max(0.0, self._settings.reserved[more] * limit - self.in_use[more])
        return math.floor(kept)

    def room(self, priority: Priority, limit: float, now: float) -> float:
        """Return how many more sequences that priority may use; may be negative after a limit has fallen."""
        return limit - self.total - self.kept_from(priority, limit, now)

    def take(self, priority: Priority, sequences: int) -> None:
        """So many sequences begin."""
        self.in_use[priority] += sequences
        self.total += sequences

    def give(self, priority: Priority, sequences: int) -> None:
        """So many sequences have ended."""
        self.in_use[priority] -= sequences
        self.total -= sequences
