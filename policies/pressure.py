"""How hard a service is pressed, as one ratio: 1 is its limit.

Two views of the same thing, of which the larger counts. *Load* is offered work over capacity; it knows at once
when arrivals jump or a replica is lost. *Lateness* is the predicted time to first token over what the objective
leaves; it knows of the backlog that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from policies.fleet import Replica
from policies.prediction import best_ttft_s
from policies.rates import Rates
from policies.work import Backlog, Work, WorkLedger

LOAD: Final = "load"
LATENESS: Final = "lateness"


class Pressure(Protocol):
    """What the ladder goes by."""

    def read(self) -> tuple[float, str]:
        """Return the present pressure, and in a word where it comes from."""
        ...

    def served(self, asked: Work, given: Work) -> None:
        """A call that asked for one amount of work is given another (nothing, where another service does it)."""
        ...


class NoPressure:
    """Never any: the ladder then moves by refusals alone. The template for another source."""

    def read(self) -> tuple[float, str]:
        """Return none."""
        return 0.0, ""

    def served(self, asked: Work, given: Work) -> None:
        """Do nothing."""


class FleetPressure:
    """The pressure on a fleet of replicas.

    Offered work is counted as it was asked for. What the ladder takes away of it is taken away here too (as a
    share, averaged over about ``1 / weight`` calls), so that the level settles where the rest can be served and
    does not go further down than that needs. ``queued`` returns what waits in front of the replicas.
    """

    def __init__(
        self,
        *,
        rotation: Callable[[], Sequence[Replica]],
        ledger: WorkLedger,
        rates: Rates,
        objective_s: float,
        queued: Callable[[], Backlog] = Backlog,
        late_share: float = 0.7,
        weight: float = 0.1,
    ) -> None:
        if not (objective_s > 0 and 0 < late_share <= 1 and 0 < weight <= 1):
            raise ValueError(
                f"objective_s={objective_s} must be over 0, late_share={late_share} and weight={weight} in (0, 1]"
            )
        self._rotation = rotation
        self._ledger = ledger
        self._rates = rates
        self._queued = queued
        self._late_s = objective_s * late_share
        self._weight = weight
        self._asked_s = self._given_s = 0.0

    def served(self, asked: Work, given: Work) -> None:
        """Note what share of the work is still done here."""
        asked_s = self._rates.service_s(asked)
        given_s = asked_s if given is asked else self._rates.service_s(given)
        self._asked_s += self._weight * (asked_s - self._asked_s)
        self._given_s += self._weight * (given_s - self._given_s)

    def read(self) -> tuple[float, str]:
        """Return the larger of load and lateness; 0 while no replica is there, which no rung can mend."""
        rotation = self._rotation()
        if not rotation:
            return 0.0, ""
        share = self._given_s / self._asked_s if self._asked_s > 0 else 1.0
        load = (1.0 - self._rates.headroom(len(rotation))) * share
        lateness = self._predicted_s(rotation) / self._late_s
        return (load, LOAD) if load >= lateness else (lateness, LATENESS)

    def _predicted_s(self, rotation: Sequence[Replica]) -> float:
        """Return the best predicted time to first token of who comes last; 0 while a replica holds nothing."""
        return best_ttft_s(rotation, self._ledger, self._rates, self._queued(), 0) or 0.0
