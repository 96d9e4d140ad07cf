"""The rungs of the ladder, how far down each kind of call may go, and the controller that chooses the level.

All of it is pure: pressure and time go in, a level comes out. The controller goes down fast, because a backlog
builds in seconds, and up slowly, because a service that looks well may look well only since it does less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from policies.call import FULL
from policies.clock import Clock
from policies.priority import Priority

SHORT_OUTPUT: Final = "short_output"
SHORT_CONTEXT: Final = "short_context"
NO_TOOLS: Final = "no_tools"
SMALL_MODEL: Final = "small_model"
CACHED: Final = "cached"
"""An answer of before that the caller may see."""
DEFERRED: Final = "deferred"
"""Accepted for later: the caller gets a job in place of an answer."""
REFUSE: Final = "refuse"
RUNGS: Final = (FULL, SHORT_OUTPUT, SHORT_CONTEXT, NO_TOOLS, SMALL_MODEL, CACHED, DEFERRED, REFUSE)
"""Best first."""
WITHOUT_WORK: Final = frozenset((CACHED, DEFERRED))
"""Rungs that take no capacity now. Each needs somebody who answers there, and a class that allows it by name."""
_DEPTHS: Final = {rung: depth for depth, rung in enumerate(RUNGS)}
LOWEST_LEVEL: Final = _DEPTHS[SMALL_MODEL]
"""The level moves calls only to where they are still computed. Who would be refused even there goes further down."""


def depth(rung: str) -> int:
    """Return how far down a rung is; 0 is full service.

    Raises:
        ValueError: there is no such rung; the text lists them.
    """
    try:
        return _DEPTHS[rung]
    except KeyError:
        raise ValueError(f"rung is {rung!r}, it must be one of {', '.join(RUNGS)}") from None


@dataclass(frozen=True, slots=True)
class ClassRungs:
    """Between which rungs a kind of call may be answered.

    ``highest`` is the best that it ever gets, ``by_level`` the lowest that the level of the ladder puts it to (never
    past ``small_model``), and ``lowest`` the lowest that it takes when it would be refused otherwise.
    """

    highest: str = FULL
    by_level: str = FULL
    lowest: str = SHORT_CONTEXT

    def __post_init__(self) -> None:
        if self.lowest == REFUSE:
            raise ValueError(f"lowest is {self.lowest}, at which nobody is answered; name a rung above it")
        if depth(self.by_level) > LOWEST_LEVEL:
            raise ValueError(
                f"by_level is {self.by_level}, the level goes no further than {SMALL_MODEL}; only lowest may"
            )
        if not depth(self.highest) <= depth(self.by_level) <= depth(self.lowest):
            raise ValueError(
                f"highest={self.highest}, by_level={self.by_level}, lowest={self.lowest}: "
                f"each must be at or below the one before, in the order {', '.join(RUNGS)}"
            )

    @classmethod
    def down_to(cls, rung: str) -> ClassRungs:
        """Return the limits of a kind that follows the level down to that rung, as far as the level goes."""
        return cls(by_level=min(rung, SMALL_MODEL, key=depth), lowest=rung)

    def at(self, level: int) -> int:
        """Return the depth of the rung at which a call of this kind starts while the ladder is at that level."""
        return max(depth(self.highest), min(level, depth(self.by_level)))


BY_PRIORITY: Final[Mapping[Priority, ClassRungs]] = MappingProxyType(
    {
        Priority.CRITICAL_PLUS: ClassRungs(lowest=SHORT_OUTPUT),
        Priority.CRITICAL: ClassRungs(lowest=SHORT_CONTEXT),
        Priority.SHEDDABLE_PLUS: ClassRungs.down_to(NO_TOOLS),
        Priority.SHEDDABLE: ClassRungs.down_to(SMALL_MODEL),
    }
)
"""Critical work keeps its place: the level does not move it, and it is shortened only where it would be refused."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """When the level moves. Pressure is a ratio: at 1 the service is at its limit.

    At ``down_at`` or more it goes a rung down, at most one every ``down_every_s``. It goes a rung up after
    ``dwell_s`` in which the pressure was at most ``up_at`` and the level did not move; the gap between the two
    thresholds and the dwell are what keeps it from oscillating.
    """

    down_at: float = 1.0
    up_at: float = 0.75
    down_every_s: float = 0.25
    dwell_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.up_at < self.down_at:
            raise ValueError(
                f"up_at={self.up_at} and down_at={self.down_at}: up_at must be over 0 and less than down_at"
            )
        if not 0 <= self.down_every_s <= self.dwell_s:
            raise ValueError(
                f"down_every_s={self.down_every_s} must be at least 0 and at most dwell_s={self.dwell_s}: "
                "the ladder goes down faster than up"
            )


class Ladder:
    """Turns pressure into a level, 0 (full service) to ``LOWEST_LEVEL``."""

    def __init__(self, clock: Clock, settings: LadderSettings | None = None) -> None:
        self._clock = clock
        self._settings = settings or LadderSettings()
        self._moved_at: float | None = None
        self._calm_since: float | None = None
        self._seen_at: float | None = None
        self.level = 0

    @property
    def rung(self) -> str:
        """Return the rung of the present level."""
        return RUNGS[self.level]

    def observe(self, pressure: float) -> int:
        """Take the present pressure and return the level; a pressure that is no number is ignored."""
        now, settings = self._clock.now(), self._settings
        if pressure != pressure:
            return self.level
        seen_at, self._seen_at = self._seen_at, now
        if pressure > settings.up_at:
            self._calm_since = None
            if pressure >= settings.down_at:
                self._down(now)
            return self.level
        if self._calm_since is None:
            # While nobody asked there was no pressure either: a long silence counts as calm from its beginning.
            silent = seen_at is not None and now - seen_at >= settings.dwell_s
            self._calm_since = seen_at if silent else now
        self._up(now, self._calm_since)
        return self.level

    def _down(self, now: float) -> None:
        rested = self._moved_at is None or now - self._moved_at >= self._settings.down_every_s
        if rested and self.level < LOWEST_LEVEL:
            self.level += 1
            self._moved_at = now

    def _up(self, now: float, calm_since: float | None) -> None:
        while self.level > 0 and self._moved_at is not None and calm_since is not None:
            due_at = max(self._moved_at, calm_since) + self._settings.dwell_s
            if due_at > now:
                return
            self.level -= 1
            self._moved_at = due_at
