"""What a fault is: resolved, injected, verified from outside, and reverted whatever happens.

A fault is resolved to one target first, so that injecting it is one step: a fault that waits for a condition
must strike within milliseconds of it. ``noop.py`` is the template for a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from chaos.admin import Admin
from chaos.load.surge import Surge
from chaos.names import require
from chaos.substrate import Endpoints, Substrate
from chaos.tenants import Tenants


class FaultError(RuntimeError):
    """A fault that cannot be injected or reverted; the text says why."""


class BlastRadius(FaultError):
    """A fault that was refused because it would take more than an experiment may take."""


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What faults act on."""

    substrate: Substrate
    endpoints: Endpoints
    admin: Admin
    surge: Surge = field(default_factory=Surge)
    """The gate of the arm's extra arrivals, for faults that are load."""
    tenants: Tenants = field(default_factory=Tenants)
    """Those of the experiment, for faults that take rights away."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a fault was seen, from outside, to have taken effect, and by what."""

    ok: bool
    detail: dict[str, Any] = field(default_factory=dict)


class Fault(Protocol):
    """One fault on one resolved target."""

    kind: ClassVar[str]
    loses_replica: ClassVar[bool]
    """Whether the target goes away and another must come: then the run waits until that one takes load."""

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> Fault:
        """Find the target (a label or a link) and do whatever takes time; change nothing.

        Raises:
            UnknownName: no such target or setting.
            BlastRadius: it would take too much.
        """
        ...

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> Fault:
        """Rebuild one from :meth:`undo_data`, to revert what a run that died has left."""
        ...

    @property
    def target(self) -> str:
        """The link that is hit, as histories name it."""
        ...

    def undo_data(self) -> dict[str, Any]:
        """Return what :meth:`restored` needs; written to disk before :meth:`inject`."""
        ...

    async def inject(self) -> None:
        """Strike. Fast: everything slow was done in :meth:`resolve`."""
        ...

    async def verify(self) -> Proof:
        """Prove from outside that it took effect; bounded."""
        ...

    async def revert(self) -> None:
        """Take it back. Safe twice, and safe when it was never injected."""
        ...


def checked_settings(kind: str, given: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    """Return ``known`` (names and defaults) overlaid with ``given``.

    Raises:
        UnknownName: a setting that the fault does not have. Toxiproxy would ignore it and inject nothing.
    """
    for name in given:
        require(f"setting of fault {kind!r}", name, known)
    return {**known, **{name: float(value) for name, value in given.items()}}
