"""An event loop whose clock jumps: code that sleeps for an hour is tested in a millisecond, and repeats exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(RuntimeError):
    """Everything waits and no timer is set: nothing will ever happen again."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Stuck("every task waits and no timer is set")
            self.loop.now += timeout
        return list(ready)


class _BlindSelector(_JumpingSelector):
    """Does not look at files, which saves a system call at every turn of the loop."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("every task waits and no timer is set")
        self.loop.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that, instead of waiting for its next timer, moves its clock there.

    A ``blind`` one is for code without sockets, threads and signals: nothing reaches it from outside.
    """

    def __init__(self, *, blind: bool = False) -> None:
        selector = _BlindSelector() if blind else _JumpingSelector()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine from instant 0 on a loop of its own, and return what it returns."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Return the virtual time."""
    return asyncio.get_running_loop().time()
