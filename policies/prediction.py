"""When a fleet would give its first token to a call that came now: one answer for all who go by it."""

from __future__ import annotations

from collections.abc import Sequence

from policies.fleet import Replica
from policies.rates import Rates
from policies.work import Backlog, WorkLedger


def best_ttft_s(
    rotation: Sequence[Replica], ledger: WorkLedger, rates: Rates, queued: Backlog, prompt_tokens: int
) -> float | None:
    """Return the best prediction over the rotation in seconds, after the work that is ``queued`` ahead.

    None when no replica is there, or when one is idle and nothing waits: then there is nothing to predict.
    """
    best_s: float | None = None
    for replica in rotation:
        ahead = ledger.at(replica)
        if ahead.attempts == 0 and queued.calls == 0:
            return None
        predicted_s = rates.predicted_ttft_s(ahead, prompt_tokens)
        best_s = predicted_s if best_s is None else min(best_s, predicted_s)
    return None if best_s is None else best_s + rates.drain_s(queued, len(rotation))
