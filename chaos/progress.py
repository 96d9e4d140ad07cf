"""Plain progress lines with the elapsed time: readable in a terminal, in a CI log and in a container's log."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO


class Progress(Protocol):
    """Takes one line of progress at a time."""

    def say(self, text: str) -> None:
        """Tell what is going on."""
        ...


class LineProgress:
    """Writes ``[ 12.3s] text`` lines to a stream, standard error unless told."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started
        print(f"[{elapsed_s:6.1f}s] {text}", file=self._stream or sys.stderr, flush=True)


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        return
