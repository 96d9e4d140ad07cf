"""The recent quantile of a duration, learned apart for each key of a bounded table.

A small window of the latest values rather than a decaying sketch: it forgets a bad minute within as many calls
as it holds, and a quantile is then one look into a sorted list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque


class _Window:
    __slots__ = ("latest", "ranked")

    def __init__(self) -> None:
        self.latest: deque[float] = deque()
        self.ranked: list[float] = []


class RecentQuantile:
    """The ``quantile`` of the latest ``window`` values of a key; nothing is known before ``least`` of them.

    At most ``keys`` keys are kept; the one that was fed longest ago makes room, so that names which clients
    choose cannot fill the memory.
    """

    def __init__(self, quantile: float, *, window: int = 128, least: int = 20, keys: int = 32) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"quantile is {quantile}: it must lie between 0 and 1")
        if not (1 <= least <= window and keys >= 1):
            raise ValueError(f"least={least} must be in 1..window={window}, keys={keys} at least 1")
        self._quantile = quantile
        self._window = window
        self._least = least
        self._keys = keys
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that are kept."""
        return len(self._windows)

    def observe(self, key: str, value_s: float) -> None:
        """Take one value in."""
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= self._keys:
                self._windows.popitem(last=False)
            window = self._windows[key] = _Window()
        else:
            self._windows.move_to_end(key)
        window.latest.append(value_s)
        insort(window.ranked, value_s)
        if len(window.latest) > self._window:
            del window.ranked[bisect_left(window.ranked, window.latest.popleft())]

    def of(self, key: str) -> float | None:
        """Return the quantile of a key; None while too little is known of it."""
        window = self._windows.get(key)
        if window is None or len(window.ranked) < self._least:
            return None
        return window.ranked[min(len(window.ranked) - 1, int(self._quantile * len(window.ranked)))]
