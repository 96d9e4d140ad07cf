"""Tells a queue that absorbs a burst from one that only stands there (CoDel, "controlled delay").

A full queue is no fault: bursts are what it is for. A queue whose delay does not once fall below a small target
within a whole interval serves nobody: everybody in it waits, and as many come as go. Facebook's use of it
for servers (ACM Queue, "Fail at scale") adds what to do then: serve the newest first, and let nobody
wait long.
"""

from __future__ import annotations


class ControlledDelay:
    """Watches the delay of a queue; pure, so that whoever owns the queue says what time it is.

    The queue is overloaded once its delay (the age of its oldest waiter, 0 when it is empty) has stayed above
    ``target_s`` for ``interval_s``: the *minimum* delay of an interval was then above the target. It no longer is
    as soon as the delay falls to the target.
    """

    __slots__ = ("_above_since", "_interval_s", "_target_s", "overloaded")

    def __init__(self, target_s: float, interval_s: float) -> None:
        if not 0 < target_s < interval_s:
            raise ValueError(f"target_s={target_s} must be over 0 and less than interval_s={interval_s}")
        self._target_s = target_s
        self._interval_s = interval_s
        self._above_since: float | None = None
        self.overloaded = False

    def observe(self, delay_s: float, now: float) -> bool:
        """Take the delay that the queue has now; return whether it is overloaded.

        It must be told whenever a waiter leaves; between two such instants the delay can only grow, so that
        how often it is told otherwise decides only how soon an overload is seen.
        """
        if delay_s <= self._target_s:
            self._above_since = None
            self.overloaded = False
        elif self._above_since is None:
            self._above_since = now - (delay_s - self._target_s)
        if self._above_since is not None and now - self._above_since >= self._interval_s:
            self.overloaded = True
        return self.overloaded
