"""One line for everything that happens, with its virtual instant: what a failing seed is read by.

Two runs of a seed are the same when their traces are; the digest is what tests compare.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import fields

from policies.events import Event


class Trace:
    """The pipeline's event sink, and the notebook of the model around it."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, Event | str]] = []
        self.heard_by: list[Callable[[float, Event], None]] = []
        """Called with ``(instant, event)`` as each event comes."""
        self.failure: Exception | None = None
        """The first error of a listener."""

    def emit(self, event: Event) -> None:
        """Take an event of the pipeline."""
        now = asyncio.get_running_loop().time()
        self._entries.append((now, event))
        for hear in self.heard_by:
            try:
                hear(now, event)
            except Exception as error:  # a sink must not raise: whoever reads the trace does it later
                self.failure = self.failure or error

    def note(self, text: str) -> None:
        """Write down something that the model did."""
        self._entries.append((asyncio.get_running_loop().time(), text))

    def lines(self) -> Iterator[str]:
        """Give the lines, in order."""
        for at, what in self._entries:
            yield f"{at:10.6f} {what if isinstance(what, str) else _line(what)}"

    def digest(self) -> str:
        """Return what two runs have in common only when they were the same."""
        return hashlib.blake2b("\n".join(self.lines()).encode(), digest_size=8).hexdigest()


def _line(event: Event) -> str:
    given = (f"{one.name}={_short(getattr(event, one.name))}" for one in fields(event))
    return f"{event.event} {' '.join(given)}"


def _short(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)
