"""How fast the replicas are, learned from what they do, and what follows from it.

Offered work, headroom and the predicted time to first token all divide tokens by rates. The rates are learned
online, so that the same code fits a laptop and an accelerator; they start optimistic, so that a cold start
refuses nobody. All replicas are taken to be alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.clock import Clock, SystemClock
from policies.work import Backlog, Outstanding, Work


@dataclass(frozen=True, slots=True)
class RatePriors:
    """What is believed before anything was seen.

    ``slots`` is the number of sequences that a replica decodes together; ``prefill_base_s`` and
    ``prefill_s_per_token`` give the time to first token at an idle replica; ``tpot_s`` the time per output
    token of one sequence. ``window_s`` is the time over which offered work is averaged.
    """

    slots: int = 8
    prefill_base_s: float = 0.03
    prefill_s_per_token: float = 0.0002
    tpot_s: float = 0.03
    weight: float = 0.05
    window_s: float = 5.0

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots is {self.slots}: a replica has at least 1")
        for name in ("prefill_s_per_token", "tpot_s", "weight", "window_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0")
        if not (self.prefill_base_s >= 0 and self.weight <= 1):
            raise ValueError(f"prefill_base_s={self.prefill_base_s} must be >= 0, weight={self.weight} <= 1")


class LineFit:
    """``y = base + slope * x``, fitted to recent points with exponentially falling weight.

    It starts on a prior line, held by two points of the weight of ``prior_points`` samples each, and never
    gives a negative base or slope.
    """

    def __init__(
        self, base: float, slope: float, *, span: float, weight: float, prior_points: float = 4.0
    ) -> None:
        self._keep = 1.0 - weight
        w = prior_points
        y0, y1 = base, base + slope * span
        self._n, self._x, self._y = 2 * w, w * span, w * (y0 + y1)
        self._xx, self._xy = w * span * span, w * span * y1
        self.base, self.slope = base, slope

    def observe(self, x: float, y: float) -> None:
        """Take one point into the fit."""
        keep = self._keep
        self._n = self._n * keep + 1
        self._x = self._x * keep + x
        self._y = self._y * keep + y
        self._xx = self._xx * keep + x * x
        self._xy = self._xy * keep + x * y
        spread = self._n * self._xx - self._x * self._x
        if spread > 1e-6 * self._n * self._n:
            slope = (self._n * self._xy - self._x * self._y) / spread
            if slope > 0:
                self.slope = slope
        self.base = max(0.0, (self._y - self.slope * self._x) / self._n)


class Rates:
    """The learned rates, and the quantities of capacity planning that are made of them."""

    def __init__(self, clock: Clock | None = None, priors: RatePriors | None = None) -> None:
        self._clock = clock or SystemClock()
        self._priors = priors or RatePriors()
        self._prefill = LineFit(
            self._priors.prefill_base_s,
            self._priors.prefill_s_per_token,
            span=1024.0,
            weight=self._priors.weight,
        )
        self._tpot_s = self._priors.tpot_s
        self._offered = 0.0
        self._offered_at = self._clock.now()

    # --- learning ----------------------------------------------------------------------------------------

    def arrived(self, work: Work) -> None:
        """A call has arrived, whether it will be admitted or not."""
        self._decay()
        self._offered += self.service_s(work)

    def first_token(self, prompt_tokens: int, after_s: float) -> None:
        """The first token of an attempt came ``after_s`` after it began, at a replica with a free slot."""
        self._prefill.observe(prompt_tokens, after_s)

    def finished(self, output_tokens: int, streamed_s: float) -> None:
        """A sequence of that many tokens has ended, ``streamed_s`` after its first token."""
        if output_tokens >= 4 and streamed_s > 0:
            self._tpot_s += self._priors.weight * (streamed_s / (output_tokens - 1) - self._tpot_s)

    # --- what follows ------------------------------------------------------------------------------------

    @property
    def prefill_tokens_per_s(self) -> float:
        """Return the prefill rate of one replica."""
        return 1.0 / max(self._prefill.slope, 1e-9)

    @property
    def decode_tokens_per_s(self) -> float:
        """Return the decode rate of one replica with all slots full."""
        return self._priors.slots / self._tpot_s

    @property
    def tpot_s(self) -> float:
        """Return the usual time per output token of one sequence."""
        return self._tpot_s

    def unloaded_ttft_s(self, prompt_tokens: int) -> float:
        """Return the time to first token at a replica with a free slot that has so many tokens to prefill."""
        return self._prefill.base + prompt_tokens * self._prefill.slope

    def backlog_s(self, backlog: Backlog) -> float:
        """Return the replica-seconds that a backlog takes."""
        return backlog.prompt_tokens * self._prefill.slope + backlog.output_tokens / self.decode_tokens_per_s

    def drain_s(self, backlog: Backlog, live_replicas: int) -> float:
        """Return the seconds in which so many replicas have worked off a backlog; infinite when there is none."""
        work_s = self.backlog_s(backlog)
        if live_replicas <= 0:
            return math.inf if work_s > 0 else 0.0
        return work_s / live_replicas

    def service_s(self, work: Work) -> float:
        """Return the replica-seconds that a call takes."""
        return work.prompt_tokens * self._prefill.slope + work.output_tokens / self.decode_tokens_per_s

    def outstanding_s(self, outstanding: Outstanding) -> float:
        """Return the replica-seconds that a replica still has to work for what it holds."""
        return (
            outstanding.prompt_tokens * self._prefill.slope
            + outstanding.output_tokens * self._tpot_s / self._priors.slots
        )

    def predicted_ttft_s(self, ahead: Outstanding, prompt_tokens: int) -> float:
        """Return the time to first token of a call that is sent to a replica with that much ahead of it.

        While a slot is free it is the prefill of everything not yet prefilled. Behind full slots the call
        also waits until enough of the sequences ahead have ended: their number times their mean remaining
        output, at the decode rate of the full batch.
        """
        prefill_s = self._prefill.base + (ahead.prompt_tokens + prompt_tokens) * self._prefill.slope
        must_end = ahead.sequences - self._priors.slots + 1
        if must_end <= 0:
            return prefill_s
        mean_remaining = ahead.output_tokens / ahead.sequences
        return prefill_s + must_end * mean_remaining / self.decode_tokens_per_s

    @property
    def slots(self) -> int:
        """Return the sequences that a replica decodes together."""
        return self._priors.slots

    def offered(self) -> float:
        """Return the offered work in replica-seconds per second, averaged over the last ``window_s`` or so."""
        self._decay()
        return self._offered / self._priors.window_s

    def capacity(self, live_replicas: int) -> float:
        """Return the service capacity in replica-seconds per second: each replica in rotation gives one."""
        return float(max(0, live_replicas))

    def headroom(self, live_replicas: int) -> float:
        """Return ``1 - offered work / capacity``: negative means saturated, -inf that nobody is there."""
        offered, capacity = self.offered(), self.capacity(live_replicas)
        if capacity == 0:
            return -math.inf if offered > 0 else 0.0
        return 1.0 - offered / capacity

    def _decay(self) -> None:
        now = self._clock.now()
        self._offered *= math.exp((self._offered_at - now) / self._priors.window_s)
        self._offered_at = now
