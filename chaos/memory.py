"""Peak memory of a local cluster and of the run itself, so that a demo can say what it needed.

Counted as proportional set size: a page that n processes share counts 1/n in each. The sum of resident
sizes would count the libraries that every replica maps once for each of them.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

from chaos.own_processes import own_processes


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def in_use() -> int:
    """Return the bytes that this process, its children and the local cluster's processes hold now."""
    return sum(_pss(process.pid) for process in own_processes())


class PeakMemory:
    """Context manager that samples :func:`in_use` in a thread; ``bytes`` is the highest sample."""

    def __init__(self, interval_s: float = 2.0) -> None:
        self.bytes = 0
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(self._interval_s):
            self.bytes = max(self.bytes, in_use())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, in_use())
