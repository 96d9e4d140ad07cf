"""What tests of policies share: a sink that remembers, calls, errors, and a handler that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from policies.call import Call
from policies.clock import Deadline, SystemClock
from policies.events import Event
from policies.work import Work

E = TypeVar("E", bound=Event)
CLOCK = SystemClock()


class Remembering:
    """A sink that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def names(self) -> list[str]:
        """Return the names of all events, in order."""
        return [event.event for event in self.events]


class FixedClock:
    """A clock that stands still until it is moved, for policies that only look at the time."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        self.at += delay_s

    def timeout(self, delay_s: float | None) -> asyncio.Timeout:
        raise NotImplementedError("use the virtual-time loop")

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        raise NotImplementedError("use the virtual-time loop")


def call(request_id: str = "c", *, within_s: float | None = None, **fields: Any) -> Call:
    """Return a call of 100 prompt and 20 output tokens, with a deadline if ``within_s`` is given."""
    fields.setdefault("work", Work(100, 20))
    if within_s is not None:
        fields["deadline"] = Deadline.after(within_s, CLOCK)
    return Call(request_id, **fields)


class Script:
    """A handler: each attempt does the next step, an error to raise or a coroutine function to run."""

    def __init__(self, *steps: BaseException | Callable[[Call], Awaitable[Any]]) -> None:
        self._steps = list(steps)
        self.attempts: list[Call] = []

    async def __call__(self, call: Call, /) -> Any:
        self.attempts.append(call)
        step = self._steps.pop(0) if self._steps else None
        if isinstance(step, BaseException):
            raise step
        return "answer" if step is None else await step(call)
