"""Keeps long prompts together on few replicas, so that short calls do not wait behind them.

The prefill of a long prompt delays every stream of its replica, and its cache can push others out to be computed
again. Spread evenly, a few long prompts make *every* replica slow. Packed onto a third of them they cost each
other something and nobody else anything. What is long is relative: where most prompts are long, none is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from policies.balance import NO_WORK, LeastWork
from policies.errors import AttemptError
from policies.fleet import Replica
from policies.observe import AttemptObserver, ObservedAttempt
from policies.work import Work

_RECENT = 256
_LEARN_EVERY = 32


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """What is long, and where it goes.

    A prompt is long that has ``long_prompt_tokens`` or more and at least ``times_median`` times the median of recent
    prompts. Long calls stay on ``long_share`` of the replicas, rounded down and never less than one. A replica takes
    them up to ``most_active_tokens`` of prompt and output together (half of what its cache holds is a good value);
    then the next replica of the share is opened. A short call goes to a replica with long ones only when every other
    would be done with it ``cost_factor`` times later.
    """

    long_prompt_tokens: int = 512
    times_median: float = 4.0
    long_share: float = 0.34
    most_active_tokens: int = 16_384
    cost_factor: float = 4.0

    def __post_init__(self) -> None:
        for name in ("long_prompt_tokens", "most_active_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("times_median", "cost_factor"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not 0 < self.long_share <= 1:
            raise ValueError(f"long_share is {self.long_share}: it must be over 0 and at most 1")


class Isolation(AttemptObserver):
    """A balancer around :class:`LeastWork`; it observes attempts, to know where long ones are."""

    def __init__(self, inner: LeastWork, settings: IsolationSettings | None = None) -> None:
        self._inner = inner
        self._settings = settings or IsolationSettings()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._until_learning = _LEARN_EVERY
        self._long_from = self._settings.long_prompt_tokens
        self._attempts: dict[ObservedAttempt, int] = {}
        self._held: dict[Replica, int] = {}

    def is_long(self, work: Work) -> bool:
        """Tell whether a call of that work is a long one at present."""
        return work.prompt_tokens >= self._long_from

    def active_long_tokens(self, replica: Replica) -> int:
        """Return the tokens of the long calls that the replica has in flight."""
        return self._held.get(replica, 0)

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False, work: Work = NO_WORK) -> Replica:
        """Return the replica for an attempt of that work."""
        if not retry:
            self._learn(work.prompt_tokens)
        if len(candidates) > 1:
            if self.is_long(work):
                candidates = self._for_long(candidates, work)
            elif self._held:
                return self._inner.pick(candidates, retry=retry, work=work, burden=self._burden)
        return self._inner.pick(candidates, retry=retry, work=work)

    def _for_long(self, candidates: Sequence[Replica], work: Work) -> Sequence[Replica]:
        """Return the one that is fullest with long calls and has room; else a new one, if one more may be opened."""
        settings, held = self._settings, self._held
        holders = [one for one in candidates if one in held]
        fitting = [one for one in holders if held[one] + work.tokens <= settings.most_active_tokens]
        if fitting:
            return [max(fitting, key=held.__getitem__)]
        may_open = len(held) < max(1, int(settings.long_share * len(candidates)))
        if may_open or not holders:
            return [one for one in candidates if one not in held] or candidates
        return holders

    def _burden(self, replica: Replica) -> float:
        return self._settings.cost_factor if replica in self._held else 1.0

    def _learn(self, prompt_tokens: int) -> None:
        self._recent.append(prompt_tokens)
        self._until_learning -= 1
        if self._until_learning <= 0:
            self._until_learning = _LEARN_EVERY
            usual = self._settings.times_median * median(self._recent)
            self._long_from = max(self._settings.long_prompt_tokens, round(usual))

    def started(self, attempt: ObservedAttempt) -> None:
        """Count it where it is, if it is long."""
        if self.is_long(attempt.work):
            tokens = attempt.work.tokens
            self._attempts[attempt] = tokens
            self._held[attempt.replica] = self._held.get(attempt.replica, 0) + tokens

    def ended(self, attempt: ObservedAttempt, error: AttemptError | None) -> None:
        """Count it no more."""
        tokens = self._attempts.pop(attempt, 0)
        if tokens:
            self._held[attempt.replica] -= tokens
            if not self._held[attempt.replica]:
                del self._held[attempt.replica]
