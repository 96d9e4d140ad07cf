"""Who asks, and what they may: what a key stands for, or what everybody is where no keys are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of one request, as its key says; never as its headers say."""

    tenant: str
    principal: str
    key_id: str = ""
    """Public part of the key; empty in open mode."""


OPEN: Final = Identity("default", "anonymous")
"""Everybody, where no tenants file is configured."""
