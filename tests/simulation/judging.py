"""What an invariant is: told of every event, asked at random instants and at the end, and silent while all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policies.events import Event

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be, at a virtual instant."""

    invariant: str
    at_s: float
    text: str


class Invariant:
    """Holds at every moment of every run; this one always does, and is the template for the next."""

    name: ClassVar[str] = "nothing"
    listens: ClassVar[bool] = False
    """Whether ``heard`` is to be called."""

    def __init__(self, world: World, violated: Callable[[str, str], None]) -> None:
        self.world = world
        self._violated = violated

    def heard(self, at_s: float, event: Event) -> None:
        """Judge an event of the pipeline, in the midst of what made it."""

    def look(self) -> None:
        """Judge the world between two turns of the event loop."""

    def tick(self) -> None:
        """Judge the world ten times a second, in runs in which replicas freeze."""

    def at_end(self) -> None:
        """Judge the whole run, when all is quiet."""

    def broken(self, text: str) -> None:
        """Say what was found."""
        self._violated(self.name, text)

    def active(self, *names: str) -> bool:
        """Tell whether those policies are all on in this run."""
        return all(name in self.world.pipeline.active for name in names)
