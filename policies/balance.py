"""Which replica gets the next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.fleet import Replica
from policies.rates import Rates
from policies.work import WorkLedger


class Balancer(Protocol):
    """Chooses among replicas that may all be used."""

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False) -> Replica:
        """Return one of the candidates, of which there is at least one; ``retry`` from the second attempt on."""
        ...


class _Turns:
    """Counts turns, those of retries apart.

    Were they counted together, every call would fail on a dead one of two replicas first: its retry takes the
    other's turn, and the next call begins with the dead one again.
    """

    def __init__(self) -> None:
        self._next = {False: -1, True: -1}

    def take(self, retry: bool, among: int) -> int:
        self._next[retry] += 1
        return self._next[retry] % among


class RoundRobin:
    """One after the other, blind to load."""

    def __init__(self) -> None:
        self._turns = _Turns()

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False) -> Replica:
        """Return the next in turn."""
        return candidates[self._turns.take(retry, len(candidates))]


class LeastWork:
    """The replica that has the least outstanding token work, in seconds of its own time.

    Prefill and decode tokens are weighed by the learned rates. Those that are level take turns, so that an
    idle fleet is not one busy replica.
    """

    def __init__(self, ledger: WorkLedger, rates: Rates) -> None:
        self._ledger = ledger
        self._rates = rates
        self._turns = _Turns()

    def pick(self, candidates: Sequence[Replica], *, retry: bool = False) -> Replica:
        """Return the least loaded."""
        start = self._turns.take(retry, len(candidates))
        at, cost_s = self._ledger.at, self._rates.outstanding_s
        return min((*candidates[start:], *candidates[:start]), key=lambda replica: cost_s(at(replica)))
