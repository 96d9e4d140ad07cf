"""How much a call matters when not all can be served (the four criticalities of Google's SRE book)."""

from __future__ import annotations

from enum import IntEnum


class Priority(IntEnum):
    """Lower is more important, so that sorting puts the most important first."""

    CRITICAL_PLUS = 0
    CRITICAL = 1
    SHEDDABLE_PLUS = 2
    SHEDDABLE = 3

    @property
    def label(self) -> str:
        """Return the name that headers and metrics use: ``critical_plus``."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Priority:
        """Return the priority of that label.

        Raises:
            ValueError: there is none; the text lists them.
        """
        try:
            return cls[label.strip().upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(one.label for one in cls)
            raise ValueError(f"priority is {label!r}, it must be one of {known}") from None
