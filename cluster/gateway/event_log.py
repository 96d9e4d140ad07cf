"""The last events, numbered, for whoever wants to know afterwards what the gateway did and when."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

from policies.events import Event

CAPACITY: Final = 100_000


@dataclass(frozen=True, slots=True)
class Page:
    """Events after a sequence number. ``last`` is the number to ask after next; ``dropped`` were overwritten."""

    events: list[dict[str, Any]]
    last: int
    dropped: int


class EventLog:
    """A sink that keeps the latest ``capacity`` events; ``seq`` counts from 1."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._ring: deque[tuple[int, float, Event]] = deque(maxlen=capacity)
        self._seq = 0

    def emit(self, event: Event) -> None:
        """Keep one event, stamped with the time."""
        self._seq += 1
        self._ring.append((self._seq, time.time(), event))

    def after(self, seq: int, limit: int = CAPACITY) -> Page:
        """Return at most ``limit`` events with a number above ``seq``."""
        oldest = self._seq - len(self._ring) + 1
        skipped = max(0, seq + 1 - oldest)
        chosen = list(islice(self._ring, skipped, skipped + limit))
        events = [{"seq": n, "at": at, "event": event.event, **_content(event)} for n, at, event in chosen]
        last = chosen[-1][0] if chosen else self._seq
        return Page(events, last, dropped=max(0, oldest - 1 - seq))


_names: dict[type[Event], tuple[str, ...]] = {}
"""Field names by kind of event, found out once."""


def _content(event: Event) -> dict[str, Any]:
    """Return the fields of an event; ``asdict`` copies deeply, which a hundred thousand events would feel."""
    names = _names.get(type(event))
    if names is None:
        names = _names[type(event)] = tuple(one.name for one in fields(event))
    return {name: getattr(event, name) for name in names}
