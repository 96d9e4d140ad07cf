"""Which replicas keep a new attempt waiting for its headers longer than is usual.

A replica that is gone without a word (its host lost, its address black) shows only by silence, and a time-out
takes a second to say so. Headers do not wait for prefill and cost a healthy replica milliseconds; so silence
ten times as long is reason enough to send the next call elsewhere, though not to give the replica up.
"""

from __future__ import annotations

from itertools import count

from policies.clock import Clock
from policies.fleet import Replica


class Silence:
    """Follows the attempts that have no headers yet.

    A replica is silent when the oldest of them has waited more than ``factor`` times the usual time (an
    exponentially weighted mean over all replicas) and more than ``least_s``.
    """

    def __init__(self, clock: Clock, *, factor: float = 5.0, least_s: float = 0.1) -> None:
        if not (factor >= 1 and least_s > 0):
            raise ValueError(f"factor={factor} must be at least 1 and least_s={least_s} over 0")
        self._clock = clock
        self._factor = factor
        self._least_s = least_s
        self._usual_s = least_s / factor
        self._waiting: dict[Replica, dict[int, float]] = {}
        self._numbers = count()

    def sent(self, replica: Replica) -> int:
        """An attempt is being made; returns its number for :meth:`over`."""
        number = next(self._numbers)
        self._waiting.setdefault(replica, {})[number] = self._clock.now()
        return number

    def over(self, replica: Replica, number: int, *, headers: bool) -> None:
        """The wait is over: headers have come, or the attempt has ended without; only the first time counts."""
        waits = self._waiting.get(replica)
        if waits is None or number not in waits:
            return
        sent_at = waits.pop(number)
        if not waits:
            del self._waiting[replica]
        if headers:
            self._usual_s += 0.05 * (self._clock.now() - sent_at - self._usual_s)

    def is_silent(self, replica: Replica) -> bool:
        """Tell whether the replica has kept somebody waiting for unusually long."""
        waits = self._waiting.get(replica)
        if not waits:
            return False
        oldest = next(iter(waits.values()))
        return self._clock.now() - oldest > max(self._least_s, self._factor * self._usual_s)
