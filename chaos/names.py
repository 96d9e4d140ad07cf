"""Unknown names, answered with the nearest known ones: a typo should cost one look and not a search."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownName(ValueError):
    """A scenario, arm, policy, link, fault or setting that does not exist; the text offers the nearest. Exit code 4."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return at most ``count`` of the ``known`` names that resemble ``name``, the closest first."""
    candidates = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, candidates, n=count, cutoff=0.5)
    started = [other for other in candidates if name and other.startswith(name) and other not in close]
    return (close + started)[:count]


def require(kind: str, name: str, known: Iterable[str]) -> str:
    """Return ``name`` when it is one of ``known``.

    Raises:
        UnknownName: it is not; the text names ``kind``, the nearest names, or all of them when none is near.
    """
    candidates = list(dict.fromkeys(known))
    if name in candidates:
        return name
    close = nearest(name, candidates)
    if close:
        hint = f"did you mean {' or '.join(repr(other) for other in close)}?"
    else:
        hint = f"known are: {', '.join(candidates) or 'none'}"
    raise UnknownName(f"unknown {kind} {name!r}: {hint}")
