"""What the bottom of the pipeline returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer: its usage, and the chunks when the client asked for a whole one."""

    usage: dict[str, Any] = field(default_factory=dict)
    chunks: tuple[dict[str, Any], ...] = ()
