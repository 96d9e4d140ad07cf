"""Toxics as plain data, checked before they are sent.

Toxiproxy ignores attributes that it does not know and accepts a toxicity above 1: a typing error would inject
nothing, and an experiment would report resilience against a fault that never was. So the check is on this side.

Durations are seconds here; milliseconds live only in ``attributes``, which is what goes over the wire.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "latency": ("latency", "jitter"),
    "bandwidth": ("rate",),
    "slow_close": ("delay",),
    "timeout": ("timeout",),
    "reset_peer": ("timeout",),
    "slicer": ("average_size", "size_variation", "delay"),
    "limit_data": ("bytes",),
    "noop": (),
}
"""The attributes of each type of toxic, all integers, as Toxiproxy spells them."""
DOWNSTREAM: Final = "downstream"
UPSTREAM: Final = "upstream"


class InvalidToxicError(ValueError):
    """A toxic that the server would misunderstand in silence, or that would crash it."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """One toxic; ``attributes`` in the server's units (ms, KB/s, bytes, and µs for a slicer's delay).

    ``toxicity`` is the share of *connections* that it affects, drawn once a connection and direction.
    """

    type: str
    attributes: Mapping[str, int] = field(default_factory=dict)
    stream: str = DOWNSTREAM
    name: str = ""
    """Empty means ``<type>_<stream>``, as in Toxiproxy."""
    toxicity: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"{self.type}_{self.stream}")

    @classmethod
    def from_wire(cls, raw: Mapping[str, Any]) -> Toxic:
        """Read a toxic as the server tells it; it is not checked, for somebody else may have put it there."""
        return cls(raw["type"], raw["attributes"], raw["stream"], raw["name"], raw["toxicity"])

    def to_wire(self) -> dict[str, Any]:
        """Return the body of the call that creates it."""
        return {
            "name": self.name,
            "type": self.type,
            "stream": self.stream,
            "toxicity": self.toxicity,
            "attributes": dict(self.attributes),
        }

    def checked(self) -> Toxic:
        """Return the toxic itself.

        Raises:
            InvalidToxicError: unknown type, stream or attribute, a value that is no integer of 0 or more, a
                toxicity outside (0, 1], or sizes with which Toxiproxy's slicer crashes.
        """
        if self.type not in ATTRIBUTES:
            raise InvalidToxicError(f"unknown type of toxic {self.type!r}{_nearest(self.type, ATTRIBUTES)}")
        for key, value in self.attributes.items():
            if key not in ATTRIBUTES[self.type]:
                hint = _nearest(key, ATTRIBUTES[self.type])
                raise InvalidToxicError(f"toxic {self.type!r} has no attribute {key!r}{hint}")
            if type(value) is not int or value < 0:
                raise InvalidToxicError(
                    f"toxic {self.type!r}: attribute {key!r} is {value!r}; give an integer of 0 or more"
                )
        if self.stream not in (DOWNSTREAM, UPSTREAM):
            raise InvalidToxicError(f"stream is {self.stream!r}; give {DOWNSTREAM!r} or {UPSTREAM!r}")
        if not 0 < self.toxicity <= 1:
            raise InvalidToxicError(f"toxicity is {self.toxicity!r}; give a share above 0 and at most 1")
        if "/" in self.name:
            raise InvalidToxicError(f"name of toxic is {self.name!r}; it may not hold a '/'")
        if self.type == "slicer":
            size, variation = (self.attributes.get(key, 0) for key in ("average_size", "size_variation"))
            if not 1 <= variation <= size:
                raise InvalidToxicError(
                    f"slicer has average_size {size} and size_variation {variation}; Toxiproxy crashes unless "
                    "1 <= size_variation <= average_size"
                )
        return self

    def is_met_by(self, found: Toxic) -> bool:
        """Tell whether ``found``, as read from the server, has all that this one asks for."""
        return (
            (self.name, self.type, self.stream) == (found.name, found.type, found.stream)
            and abs(self.toxicity - found.toxicity) < 1e-6
            and all(found.attributes.get(key) == value for key, value in self.attributes.items())
        )


def latency(delay_s: float, jitter_s: float = 0.0, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a delay of each chunk by ``delay_s`` ± ``jitter_s`` from its arrival; order is kept."""
    values = {"latency": _milliseconds(delay_s), "jitter": _milliseconds(jitter_s)}
    return Toxic("latency", values, stream, name).checked()


def bandwidth(kilobytes_per_s: int, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a throttle to ``kilobytes_per_s`` × 1000 bytes a second; 0 lets nothing through."""
    return Toxic("bandwidth", {"rate": kilobytes_per_s}, stream, name).checked()


def timeout(quiet_s: float = 0.0, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a black hole: data is dropped, and after ``quiet_s`` without data (0: never) it is closed."""
    return Toxic("timeout", {"timeout": _milliseconds(quiet_s)}, stream, name).checked()


def reset_peer(after_s: float = 0.0, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a TCP reset of the connection, ``after_s`` after the first data."""
    return Toxic("reset_peer", {"timeout": _milliseconds(after_s)}, stream, name).checked()


def limit_data(size: int, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a cut of the connection after ``size`` bytes."""
    return Toxic("limit_data", {"bytes": size}, stream, name).checked()


def slow_close(delay_s: float, *, stream: str = DOWNSTREAM, name: str = "") -> Toxic:
    """Return a delay of the end of the stream by ``delay_s``; its data is not delayed."""
    return Toxic("slow_close", {"delay": _milliseconds(delay_s)}, stream, name).checked()


def _milliseconds(value_s: float) -> int:
    """Convert to the wire's whole milliseconds; anything above 0 is at least 1."""
    return max(1, round(value_s * 1000)) if value_s > 0 else round(value_s * 1000)


def _nearest(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=3)
    return f"; did you mean {', '.join(close)}?" if close else f"; it knows {', '.join(names) or 'none'}"
