"""A budget that keeps retries a small share of the load, whatever fails.

Each first attempt deposits a part of a retry and a retry withdraws a whole one; a small reserve per second
lets a quiet service retry too. It is kept three times, in attempts, in tokens of prefill and in tokens of
decode, because ten retries of long prompts are not ten retries of short ones, and a token of decode costs what
many of prefill do. It is held from *before* the backoff sleep: were it taken after, a thousand sleepers would
all find it full and fire together. (Finagle's and Envoy's retry budgets.)

Everything that repeats work draws on one budget: retries, resumes and hedges. Several gateways in front of the
same replicas share one too, by each taking its part of what comes without a first attempt; otherwise a fault
that they all see would be answered with the whole of it by every one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.clock import Clock, SystemClock
from policies.work import Work


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """``ratio`` of a retry (and of its tokens) is earned by a first attempt; the rest bounds what is saved up.

    At most ``burst`` retries of ``burst_tokens`` tokens of prefill and ``burst_output_tokens`` of decode in all
    can be saved, half of which is there at the start; ``reserve_...`` come by themselves. All but the ratio are
    for the whole service: each of ``gateways`` gateways has that part of them.
    """

    ratio: float = 0.2
    reserve_per_s: float = 1.0
    burst: float = 40.0
    reserve_tokens_per_s: float = 500.0
    burst_tokens: float = 40_000.0
    reserve_output_tokens_per_s: float = 100.0
    burst_output_tokens: float = 16_000.0
    gateways: int = 1

    def __post_init__(self) -> None:
        if self.gateways < 1:
            raise ValueError(f"gateways is {self.gateways}: it must be at least 1")
        for name in ("ratio", "reserve_per_s", "reserve_tokens_per_s", "reserve_output_tokens_per_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0")
        for name in ("burst", "burst_tokens", "burst_output_tokens"):
            if not getattr(self, name) >= self.gateways:
                raise ValueError(
                    f"{name} is {getattr(self, name)}: it must be at least 1 for each of {self.gateways} gateways"
                )


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

    __slots__ = ("_budget", "_open", "_work")

    def __init__(self, budget: RetryBudget, work: Work) -> None:
        self._budget = budget
        self._work = work
        self._open = True

    def spend(self) -> None:
        """The retry is being sent: nothing comes back from here on."""
        self._open = False

    def refund(self) -> None:
        """The retry was never sent. Does nothing once it was spent; safe twice."""
        if self._open:
            self._open = False
            self._budget._give_back(self._work)


class RetryBudget:
    """Shared by everything that repeats work. It must be made where its clock can be read."""

    def __init__(self, clock: Clock | None = None, settings: BudgetSettings | None = None) -> None:
        clock, of = clock or SystemClock(), settings or BudgetSettings()
        part = 1.0 / of.gateways
        self._ratio = of.ratio
        self._attempts = _Account(clock, of.reserve_per_s * part, of.burst * part)
        self._prefill = _Account(clock, of.reserve_tokens_per_s * part, of.burst_tokens * part)
        self._decode = _Account(clock, of.reserve_output_tokens_per_s * part, of.burst_output_tokens * part)

    @property
    def balance(self) -> float:
        """Return how many retries could be held now, were they without tokens."""
        return self._attempts.refill()

    @property
    def tokens(self) -> tuple[float, float]:
        """Return how many tokens of prefill and of decode could be held now."""
        return self._prefill.refill(), self._decode.refill()

    def deposit(self, work: Work) -> None:
        """A first attempt is being made."""
        self._attempts.refill(self._ratio)
        self._prefill.refill(self._ratio * work.prompt_tokens)
        self._decode.refill(self._ratio * work.output_tokens)

    def hold(self, work: Work) -> Hold | None:
        """Take what a retry of that work costs, or return None when the budget does not cover it."""
        if (
            self._attempts.refill() < 1.0
            or self._prefill.refill() < work.prompt_tokens
            or self._decode.refill() < work.output_tokens
        ):
            return None
        self._attempts.balance -= 1.0
        self._prefill.balance -= work.prompt_tokens
        self._decode.balance -= work.output_tokens
        return Hold(self, work)

    def _give_back(self, work: Work) -> None:
        self._attempts.refill(1.0)
        self._prefill.refill(work.prompt_tokens)
        self._decode.refill(work.output_tokens)
