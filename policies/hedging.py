"""Sends a second attempt beside one whose first token is late, and goes on with whichever answers first.

It cures the odd slow replica, and it adds load exactly when things are slow; so it is off by default, waits for
the 95th percentile of the class's own time to first token, is paid from the budget that retries draw on too, and
never repeats what may act (calls with tools, calls that are not idempotent). (gRPC A6; Dean and Barroso, "The
Tail at Scale".)

Which of the two may answer is decided in :mod:`policies.race`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from policies.call import Attempt, Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.events import EventSink, NullSink
from policies.fleet import Replica
from policies.quantiles import RecentQuantile
from policies.race import Race, Rules
from policies.retry_budget import Hold, RetryBudget


@dataclass(frozen=True, slots=True)
class HedgingSettings:
    """A hedge is sent after the ``quantile`` of the class's latest ``window`` times to first token.

    Before ``least_samples`` of them there is none, nor ever before ``least_s``. At most ``classes`` classes are
    told apart.
    """

    quantile: float = 0.95
    least_s: float = 0.05
    window: int = 128
    least_samples: int = 20
    classes: int = 32

    def __post_init__(self) -> None:
        if not self.least_s > 0:
            raise ValueError(f"least_s is {self.least_s}: it must be over 0")
        self.learner()

    def learner(self) -> RecentQuantile:
        """Return what learns the times to first token."""
        return RecentQuantile(self.quantile, window=self.window, least=self.least_samples, keys=self.classes)


class Hedging:
    """At most one hedge a call, and only beside its first attempt; it counts among the ``max_attempts``.

    Args:
        budget: what hedges are paid from. Share it with :class:`policies.retry.Retry`, which deposits;
            ``deposits`` says that nobody else does.
        rotation: the replicas in use, where there is somebody below who chooses among them: the hedge avoids the
            first attempt's, and there is none when no other is left. Without it the handler is left to choose
            by ``call.attempt.number``.
    """

    def __init__(
        self,
        settings: HedgingSettings | None = None,
        *,
        budget: RetryBudget | None = None,
        deposits: bool = False,
        rotation: Callable[[], Sequence[Replica]] | None = None,
        max_attempts: int = 3,
        clock: Clock | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}: at least 1 attempt is needed")
        self._settings = settings or HedgingSettings()
        self._ttft = self._settings.learner()
        self._budget = budget
        self._deposits = deposits
        self._rotation = rotation
        self._max_attempts = max_attempts
        self._rules = Rules(self._second, self._learned, clock or SystemClock(), sink or NullSink())

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, from one attempt or from the faster of two.

        Raises:
            AttemptError: the last attempt's error, when none is left that could still answer.
        """
        attempt = call.attempt or Attempt()
        if self._deposits and self._budget is not None and attempt.number == 1:
            self._budget.deposit(call.work)
        if not self._may_hedge(call, attempt):
            return await inner(call.trying(attempt))
        race = Race(self._rules, call, attempt, inner)
        try:
            return await race.run(self.after_s(call.service_class))
        finally:
            await race.close()

    def after_s(self, service_class: str) -> float | None:
        """Return how long a first token of that class may take before it is hedged; None while nobody knows."""
        usual_s = self._ttft.of(service_class)
        return None if usual_s is None else max(usual_s, self._settings.least_s)

    def _may_hedge(self, call: Call, attempt: Attempt) -> bool:
        return (
            attempt.number == 1
            and self._max_attempts > 1
            and call.idempotent
            and not call.tools
            and not call.delivery.started
        )

    def _second(self, call: Call, attempt: Attempt) -> tuple[Attempt, Hold | None] | None:
        """Return the hedge's attempt and what pays for it; None when there is to be none."""
        avoid = attempt.avoid
        if self._rotation is not None:
            replicas, first = self._rotation(), call.delivery.replica
            if all(one.name == first for one in replicas):
                return None
            avoid = (*avoid, *(one for one in replicas if one.name == first))
        hold: Hold | None = None
        if self._budget is not None:
            hold = self._budget.hold(call.work)
            if hold is None:
                return None
        return replace(attempt, number=attempt.number + 1, avoid=avoid), hold

    def _learned(self, call: Call, ttft_s: float) -> None:
        self._ttft.observe(call.service_class, ttft_s)
