"""A budget that keeps retries a small share of the load, whatever fails.

Each first attempt deposits a part of a retry and a retry withdraws a whole one; a small reserve per second
lets a quiet service retry too. It is kept twice, in attempts and in tokens, because ten retries of long
prompts are not ten retries of short ones. It is held from *before* the backoff sleep: were it taken after,
a thousand sleepers would all find it full and fire together. (Finagle's and Envoy's retry budgets.)
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.clock import Clock
from policies.work import Work


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """``ratio`` of a retry (and of its tokens) is earned by a first attempt; the rest bounds what is saved up.

    ``burst`` retries of ``burst_tokens`` tokens in all can be saved, half of which is there at the start;
    ``reserve_per_s`` and ``reserve_tokens_per_s`` come by themselves.
    """

    ratio: float = 0.2
    reserve_per_s: float = 1.0
    burst: float = 40.0
    reserve_tokens_per_s: float = 500.0
    burst_tokens: float = 40_000.0

    def __post_init__(self) -> None:
        for name in ("ratio", "reserve_per_s", "reserve_tokens_per_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0")
        for name in ("burst", "burst_tokens"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")


class _Account:
    __slots__ = ("_at", "_cap", "_clock", "_rate", "balance")

    def __init__(self, clock: Clock, rate_per_s: float, cap: float) -> None:
        self._clock, self._rate, self._cap = clock, rate_per_s, cap
        self._at = clock.now()
        self.balance = cap / 2

    def refill(self, amount: float = 0.0) -> float:
        now = self._clock.now()
        self.balance = min(self._cap, self.balance + amount + (now - self._at) * self._rate)
        self._at = now
        return self.balance


class Hold:
    """Budget taken for one retry. Refund it if the retry is never sent; otherwise it is spent."""

    __slots__ = ("_budget", "_open", "_tokens")

    def __init__(self, budget: RetryBudget, tokens: int) -> None:
        self._budget = budget
        self._tokens = tokens
        self._open = True

    def spend(self) -> None:
        """The retry is being sent: nothing comes back from here on."""
        self._open = False

    def refund(self) -> None:
        """The retry was never sent. Does nothing once it was spent; safe twice."""
        if self._open:
            self._open = False
            self._budget._give_back(self._tokens)


class RetryBudget:
    """Shared by everything that repeats work."""

    def __init__(self, clock: Clock, settings: BudgetSettings | None = None) -> None:
        self._settings = settings or BudgetSettings()
        self._attempts = _Account(clock, self._settings.reserve_per_s, self._settings.burst)
        self._tokens = _Account(clock, self._settings.reserve_tokens_per_s, self._settings.burst_tokens)

    @property
    def balance(self) -> float:
        """Return how many retries could be held now."""
        return self._attempts.refill()

    def deposit(self, work: Work) -> None:
        """A first attempt is being made."""
        self._attempts.refill(self._settings.ratio)
        self._tokens.refill(self._settings.ratio * work.tokens)

    def hold(self, work: Work) -> Hold | None:
        """Take what a retry of that work costs, or return None when the budget does not cover it."""
        if self._attempts.refill() < 1.0 or self._tokens.refill() < work.tokens:
            return None
        self._attempts.balance -= 1.0
        self._tokens.balance -= work.tokens
        return Hold(self, work.tokens)

    def _give_back(self, tokens: int) -> None:
        self._attempts.refill(1.0)
        self._tokens.refill(tokens)
