"""Work in tokens: what a call costs, and what is outstanding at each replica.

Requests are no measure of load: one prompt of 3,000 tokens costs what twenty short ones do. A call's work is
reserved in one step when an attempt begins, shrinks as its tokens come, and what is left of it is given back
when the attempt ends, however it ends. Reservations therefore always sum to what is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from policies.fleet import Replica


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of a call: ``prompt_tokens`` to prefill and ``output_tokens`` that are expected to be decoded.

    ``sequences`` is the number of batch slots that it takes (``n`` choices, or several prompts at once).
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    sequences: int = 1

    def __post_init__(self) -> None:
        if self.prompt_tokens < 0 or self.output_tokens < 0 or self.sequences < 1:
            raise ValueError(f"{self}: tokens are at least 0 and sequences at least 1")

    @property
    def tokens(self) -> int:
        """Return prompt and output tokens together."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that is not done yet, in calls and in tokens; those of several places can be added."""

    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return prompt and output tokens together."""
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: Backlog) -> Backlog:
        return Backlog(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.output_tokens + other.output_tokens,
        )


@dataclass(slots=True)
class Outstanding:
    """Work that is at a replica now: attempts, sequences, and tokens still to prefill and to decode."""

    attempts: int = 0
    sequences: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return prompt and output tokens together."""
        return self.prompt_tokens + self.output_tokens

    def backlog(self) -> Backlog:
        """Return it as a backlog that no longer changes."""
        return Backlog(self.attempts, self.prompt_tokens, self.output_tokens)


_NONE = Outstanding()


class Reservation:
    """The work that one attempt holds at one replica; a context manager that gives back what is left."""

    __slots__ = ("_ledger", "_open", "_prompt", "_remaining", "replica", "work")

    def __init__(self, ledger: WorkLedger, replica: Replica, work: Work) -> None:
        self._ledger = ledger
        self.replica = replica
        self.work = work
        self._prompt = work.prompt_tokens
        self._remaining = work.output_tokens
        self._open = True

    def tokens(self, count: int) -> None:
        """``count`` tokens of output have come; the first of them also says that the prompt is done."""
        if not self._open:
            return
        done = min(count, self._remaining)
        self._remaining -= done
        self._ledger._less(self.replica, self._prompt, done)
        self._prompt = 0

    def release(self) -> None:
        """Give back what is left; safe twice."""
        if self._open:
            self._open = False
            self._ledger._close(self.replica, self.work.sequences, self._prompt, self._remaining)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class WorkLedger:
    """What is outstanding, by replica and in all. Replicas without work take no memory."""

    def __init__(self) -> None:
        self._by_replica: dict[Replica, Outstanding] = {}
        self._all = Outstanding()

    def reserve(self, replica: Replica, work: Work) -> Reservation:
        """Book the work of a new attempt at a replica; nothing else can come in between."""
        at = self._by_replica.setdefault(replica, Outstanding())
        for account in (at, self._all):
            account.attempts += 1
            account.sequences += work.sequences
            account.prompt_tokens += work.prompt_tokens
            account.output_tokens += work.output_tokens
        return Reservation(self, replica, work)

    def at(self, replica: Replica) -> Outstanding:
        """Return what is outstanding at a replica; read it at once, it changes."""
        return self._by_replica.get(replica, _NONE)

    @property
    def total(self) -> Outstanding:
        """Return the backlog: what is outstanding at all replicas together, in attempts and in tokens."""
        return self._all

    def _less(self, replica: Replica, prompt: int, output: int) -> None:
        at, total = self._by_replica[replica], self._all
        at.prompt_tokens -= prompt
        at.output_tokens -= output
        total.prompt_tokens -= prompt
        total.output_tokens -= output

    def _close(self, replica: Replica, sequences: int, prompt: int, output: int) -> None:
        self._less(replica, prompt, output)
        at = self._by_replica[replica]
        for account in (at, self._all):
            account.attempts -= 1
            account.sequences -= sequences
        if at.attempts == 0:
            del self._by_replica[replica]


class OutputEstimator:
    """Says how long an output will be, from how long earlier ones were.

    With a limit it is that share of the limit which earlier calls used (all of it, until some have been
    seen); without one, the mean of earlier outputs. Both are exponentially weighted means.
    """

    def __init__(self, *, prior_tokens: float = 256.0, weight: float = 0.05) -> None:
        if not (prior_tokens > 0 and 0 < weight <= 1):
            raise ValueError(f"prior_tokens={prior_tokens} must be over 0 and weight={weight} in (0, 1]")
        self._mean = prior_tokens
        self._share = 1.0
        self._weight = weight

    def estimate(self, limit: int | None, ceiling: int) -> int:
        """Return the expected output in tokens, between 1 and ``limit`` (or ``ceiling`` when there is none)."""
        if limit is None:
            return max(1, min(round(self._mean), ceiling))
        return max(1, min(round(limit * self._share), limit))

    def observe(self, output_tokens: int, limit: int | None) -> None:
        """Learn from an answer that came to its own end."""
        self._mean += self._weight * (output_tokens - self._mean)
        if limit:
            self._share += self._weight * (min(1.0, output_tokens / limit) - self._share)
