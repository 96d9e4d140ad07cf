"""The calls that are in flight now: each is registered once, and ends once, with its outcome."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from policies.clock import Clock
from policies.events import CallEnded, EventSink


class Calls:
    """The register. ``on_ttft`` is told the time to first token of each call, in seconds."""

    def __init__(self, sink: EventSink, clock: Clock, on_ttft: Callable[[float], None]) -> None:
        self._sink = sink
        self._clock = clock
        self._on_ttft = on_ttft
        self._live: dict[str, LiveCall] = {}
        self.waiting = 0
        """Calls that have no first token yet."""

    def __len__(self) -> int:
        """Return the number of calls whose answer has not ended."""
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        """Tell whether the call of that request is in flight."""
        return request_id in self._live

    def open(self, request_id: str) -> LiveCall:
        """Register a call. An id that is in flight already gets a suffix, so that no two are mixed up."""
        name, copies = request_id, 1
        while name in self._live:
            copies += 1
            name = f"{request_id}~{copies}"
        live = LiveCall(self, name, self._clock.now())
        self._live[name] = live
        self.waiting += 1
        return live

    def _first_token(self, arrived_at: float) -> None:
        self.waiting -= 1
        self._on_ttft(self._clock.now() - arrived_at)

    def _close(self, live: LiveCall, *, was_waiting: bool) -> None:
        self.waiting -= was_waiting
        del self._live[live.request_id]
        self._sink.emit(CallEnded(live.request_id, live.outcome, live.reason, live.rung))


class LiveCall:
    """A call in flight; leaving the context ends it, with ``outcome`` (``cancelled`` unless it was set).

    ``reason`` is why it was refused, ``rung`` where on the ladder it was answered.
    """

    def __init__(self, calls: Calls, request_id: str, arrived_at: float) -> None:
        self.request_id = request_id
        self.outcome = "cancelled"
        self.reason = ""
        self.rung = ""
        self._calls = calls
        self._arrived_at = arrived_at
        self._waiting = True

    def first_token(self) -> None:
        """The first token is there; only the first time counts."""
        if self._waiting:
            self._waiting = False
            self._calls._first_token(self._arrived_at)

    def __enter__(self) -> LiveCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls._close(self, was_waiting=self._waiting)
