"""The substrates, one a module; to add one, implement :class:`chaos.substrate.Substrate` and add one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from chaos.names import require
from chaos.substrate import Substrate
from chaos.substrates.compose import ComposeSubstrate, inside_compose
from chaos.substrates.local import LocalSubstrate

SUBSTRATES: Final[Mapping[str, Callable[[], Substrate]]] = {
    "local": LocalSubstrate,
    "compose": ComposeSubstrate,
}


def substrate(name: str) -> Substrate:
    """Return the substrate of that name.

    Raises:
        UnknownName: there is none; the text offers the nearest.
    """
    return SUBSTRATES[require("substrate", name, SUBSTRATES)]()


def default_substrate() -> str:
    """Return the substrate that this process most likely means: ``compose`` inside its network, else ``local``."""
    return "compose" if inside_compose() else "local"
