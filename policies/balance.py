"""Which replica gets the next attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from policies.fleet import Replica
from policies.rates import Rates
from policies.work import Work, WorkLedger

NO_WORK = Work()


class Balancer(Protocol):
    """Chooses among replicas that may all be used."""

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False, work: Work = NO_WORK) -> Replica:
        """Return one of the candidates, of which there is at least one, for an attempt of that work.

        ``retry`` from the second attempt on.
        """
        ...


class Turns:
    """Counts turns, those of retries apart.

    Were they counted together, every call would fail on a dead one of two replicas first: its retry takes the
    other's turn, and the next call begins with the dead one again.
    """

    def __init__(self) -> None:
        self._next = {False: -1, True: -1}

    def take(self, retry: bool, among: int) -> int:
        """Return whose turn it is, counted from 0."""
        self._next[retry] += 1
        return self._next[retry] % among


class RoundRobin:
    """One after the other, blind to load."""

    def __init__(self) -> None:
        self._turns = Turns()

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False, work: Work = NO_WORK) -> Replica:
        """Return the next in turn."""
        return candidates[self._turns.take(retry, len(candidates))]


def full_weight(_: Replica) -> float:
    """Return 1: every replica takes its full share."""
    return 1.0


class LeastWork:
    """The replica that would be done first with the attempt, in seconds of its own time.

    Prefill and decode tokens are weighed by the learned rates. What a replica of weight 0.5 holds counts twice, so
    that it gets half as much; an idle one is idle whatever its weight. Those that are level take turns, so that an
    idle fleet is not one busy replica.

    A replica with a free slot goes before one whose slots are taken, however little is left to do there: behind full
    slots the first token waits until somebody else's answer has ended.
    """

    def __init__(
        self, ledger: WorkLedger, rates: Rates, *, weight: Callable[[Replica], float] = full_weight
    ) -> None:
        self._ledger = ledger
        self._rates = rates
        self._weight = weight
        self._turns = Turns()

    def pick(
        self,
        candidates: Sequence[Replica],
        *,
        retry: bool = False,
        work: Work = NO_WORK,
        burden: Callable[[Replica], float] = full_weight,
    ) -> Replica:
        """Return the one with the least cost, each times its ``burden``, among those with a free slot if any has."""
        start = self._turns.take(retry, len(candidates))
        own_s = self._rates.service_s(work)

        def rank(replica: Replica) -> tuple[bool, float]:
            held, weight = self._ledger.at(replica), self._weight(replica)
            is_full = held.sequences >= max(1.0, self._rates.slots * weight)
            cost_s = self._rates.outstanding_s(held) / weight + own_s
            return is_full, cost_s * burden(replica)

        return min((*candidates[start:], *candidates[:start]), key=rank)
