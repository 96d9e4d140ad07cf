"""What clients do beyond sending a call once: name it with a key, and repeat it while its answer is not final.

A load client that retried by itself would hide the failures that it measures. So a class of calls has to say that its
clients repeat, as real ones with an idempotency key do; each try stands in the history, and an arm can take the habit
away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chaos.load.answer import FINISHED, Answer

IN_FLIGHT: Final = 409
_AGAIN: Final = frozenset({0, IN_FLIGHT, 429, 502, 503, 504})
"""Statuses after which a repetition may find something new; 0 is no answer at all."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Habit:
    """How one class of calls is sent in one arm. ``keyed`` calls carry an idempotency key."""

    keyed: bool = False
    repeats: bool = False
    same_key: bool = True
    anew: bool = False
    """Whether every answer is to be computed."""

    def key(self, call_id: str, number: int) -> str:
        """Return the key of a call's ``number``-th try; empty without one."""
        if not self.keyed:
            return ""
        return f"key-{call_id}" if self.same_key or number == 1 else f"key-{call_id}.{number}"


def pause_s(answer: Answer, number: int) -> float | None:
    """Return how long a client that repeats waits after its ``number``-th try; None when that was final."""
    cut = answer.status == 200 and (answer.error_type or answer.finish_reason not in FINISHED)
    if not (cut or answer.status in _AGAIN) or answer.should_retry == "false":
        return None
    doubled = min(_FIRST_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
    return min(answer.retry_after_s, _LONGEST_PAUSE_S) if answer.retry_after_s is not None else doubled
