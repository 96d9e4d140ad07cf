"""What a checker gives, and how one is run: a checker that crashes has found nothing out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from chaos.measures import Measures

Status = Literal["pass", "fail", "inconclusive"]
_ORDER: Final[tuple[Status, ...]] = ("pass", "inconclusive", "fail")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``arm`` is empty when it is about the run; ``detail`` holds what JSON can hold."""

    name: str
    status: Status
    summary: str
    """One sentence a person can act on."""
    arm: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    crashed: bool = False
    """The checker itself failed; its status is then inconclusive."""


Checker = Callable[[Measures], Iterable[Check]]


def worst(statuses: Iterable[Status]) -> Status:
    """Return the one that decides: fail beats inconclusive beats pass; of none, inconclusive."""
    return max(statuses, key=_ORDER.index, default="inconclusive")


def crashed(name: str, error: Exception) -> Check:
    """Return the check that says that the code behind it crashed: it has found nothing out."""
    summary = f"the checker crashed: {type(error).__name__}: {error}"
    return Check(name, "inconclusive", summary, crashed=True)


def run(checker: Checker, measures: Measures) -> tuple[Check, ...]:
    """Run a checker; when it raises, say so in an inconclusive check of its name."""
    try:
        return tuple(checker(measures))
    except Exception as error:
        return (crashed(getattr(checker, "__name__", str(checker)), error),)
