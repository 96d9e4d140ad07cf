"""Named instants in a request's life at which a test lets the gateway die, as ``kill -9`` would.

``BROWNOUT_CRASH_AT=NAME[:N]`` arms one of them: the process kills itself the N-th time (from 1) that it comes by.
Otherwise ``reached`` does nothing. It is not a setting: nobody who runs a gateway should find it among those.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "BROWNOUT_CRASH_AT"
POINTS: Final = (
    "before_claim",
    "after_claim",
    "tool_asked",
    "tool_acted",
    "tool_recorded",
    "first_token",
    "mid_stream",
    "before_record",
    "after_record",
)
"""In the order in which a request comes by them."""


class CrashPointError(ValueError):
    """The variable names no point."""


def armed(value: str | None, die: Callable[[], None]) -> Callable[[str], None]:
    """Return what is to be called with the name of each point that is reached.

    Raises:
        CrashPointError: there is no such point.
    """
    if not value:
        return _nothing
    wanted, _, count = value.partition(":")
    if wanted not in POINTS or not (count or "1").isdigit() or count == "0":
        raise CrashPointError(
            f"{VARIABLE}={value!r} is not NAME or NAME:N with a name of {', '.join(POINTS)}"
        )
    left = int(count or 1)

    def reached(point: str) -> None:
        nonlocal left
        if point == wanted:
            left -= 1
            if left == 0:
                die()

    return reached


def _nothing(point: str) -> None:
    return None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


reached: Final = armed(os.environ.get(VARIABLE), _die)
