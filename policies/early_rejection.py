"""Refuses a call at once when its first token is predicted to come too late.

An early "no" costs nothing and can be acted on; a late answer costs a batch slot and helps nobody. (Early
rejection by predicted TTFT, as in Mooncake.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from policies.call import Call, Handler, T
from policies.errors import Overloaded
from policies.events import EventSink, NullSink, Refused
from policies.fleet import Replica
from policies.growth import come_back_s
from policies.prediction import best_ttft_s
from policies.priority import Priority
from policies.rates import Rates
from policies.work import Backlog, WorkLedger


def nothing_queues(_: Priority) -> Backlog:
    """Return nothing: where calls do not wait for permits."""
    return Backlog()


class EarlyRejection:
    """Refuses when no replica in rotation is predicted to give a first token within the objective.

    The objective is ``objective_s`` or what is left of the caller's deadline, whichever is less. ``queued`` returns
    the work that waits for a permit and is at least as important as a call of that priority: it goes first. While
    nothing waits, a replica that holds nothing is refused to nobody: its answer is what corrects a prediction
    gone wrong.
    """

    def __init__(
        self,
        objective_s: float,
        *,
        rotation: Callable[[], Sequence[Replica]],
        ledger: WorkLedger,
        rates: Rates,
        queued: Callable[[Priority], Backlog] = nothing_queues,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
        most_retry_after_s: float = 30.0,
    ) -> None:
        if not objective_s > 0:
            raise ValueError(f"objective_s is {objective_s}: it must be over 0")
        self._objective_s = objective_s
        self._rotation = rotation
        self._ledger = ledger
        self._rates = rates
        self._queued = queued
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._most_retry_after_s = most_retry_after_s

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, or refuse it.

        Raises:
            Overloaded: with the predicted time and the time after which to come back.
        """
        predicted_s = self.predicted_ttft_s(call.work.prompt_tokens, call.priority)
        allowed_s = min(self._objective_s, call.deadline.remaining())
        if predicted_s is not None and predicted_s > allowed_s:
            drain_s = max(1.0, predicted_s - allowed_s)
            retry_after_s = come_back_s(drain_s, self._rng, most_s=self._most_retry_after_s)
            self._sink.emit(Refused(call.request_id, Overloaded.reason))
            raise Overloaded(
                f"the first token is predicted after {predicted_s:.1f} s, allowed are {allowed_s:.1f} s",
                retry_after_s=retry_after_s,
                predicted_s=predicted_s,
            )
        return await inner(call)

    def predicted_ttft_s(self, prompt_tokens: int, priority: Priority = Priority.SHEDDABLE) -> float | None:
        """Return the best prediction over the rotation, after what is queued ahead.

        None when no replica is there, or when one is idle and nothing waits.
        """
        queued = self._queued(priority)
        return best_ttft_s(self._rotation(), self._ledger, self._rates, queued, prompt_tokens)
