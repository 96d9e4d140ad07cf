"""The seam on which everything hangs that learns from attempts: limits, ejection, stall detection.

Dispatch keeps one record an attempt and tells its observers when it begins, when its first token comes and
when it ends; tokens in between only move the record, so that an observer costs nothing per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.errors import AttemptError
from policies.fleet import Replica
from policies.progress import Progress
from policies.work import Work


@dataclass(slots=True, eq=False)
class ObservedAttempt:
    """One attempt on one replica. Instants are the clock's seconds."""

    request_id: str
    number: int
    replica: Replica
    work: Work
    progress: Progress
    started_at: float
    free_slot: bool
    """Whether the replica had a free batch slot and nothing to prefill when the attempt began."""
    abort: Callable[[AttemptError], None]
    """Ends the attempt from outside with that error; does nothing once it has ended."""
    expected_ttft_s: float | None = None
    """Seconds to the first token as the rates foresaw them; None where the call had to wait for a batch slot first."""
    first_token_at: float | None = None
    tokens: int = 0
    """Output tokens so far."""
    outcome: str = ""
    """``ok``, ``failed`` or ``cancelled`` once it has ended."""

    @property
    def ttft_s(self) -> float | None:
        """Return the seconds to the first token; None before it."""
        return None if self.first_token_at is None else self.first_token_at - self.started_at

    @property
    def tpot_s(self) -> float | None:
        """Return the mean seconds per output token after the first, less what its reader took; None below two."""
        if self.first_token_at is None or self.tokens < 2:
            return None
        streamed_s = self.progress.last_at - self.first_token_at - self.progress.paused_s
        return max(0.0, streamed_s) / (self.tokens - 1)


class AttemptObserver:
    """Told of every attempt; this one does nothing and is the template for the next."""

    def started(self, attempt: ObservedAttempt) -> None:
        """The replica has been chosen and is about to be asked."""

    def first_token(self, attempt: ObservedAttempt) -> None:
        """The first token has come."""

    def ended(self, attempt: ObservedAttempt, error: AttemptError | None) -> None:
        """The attempt is over; ``attempt.outcome`` says how, ``error`` is set when it failed."""
