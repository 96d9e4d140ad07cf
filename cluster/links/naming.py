"""Names, slots and ports of the links of replicas."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from typing import Final, NamedTuple

from cluster.links.records import ReplicaKind
from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, REPLICA_LABEL_PREFIX, SMALL_LABEL_PREFIX

_SHORT: Final = 5
_PREFIXES: Final[dict[ReplicaKind, str]] = {
    KIND_REPLICA: REPLICA_LABEL_PREFIX,
    KIND_REPLICA_SMALL: SMALL_LABEL_PREFIX,
}
_NAME: Final = re.compile(r"([a-z]+-)(\d+)\.([^/]+)")


class Parsed(NamedTuple):
    """What the name of a replica's link says."""

    kind: ReplicaKind
    slot: int
    short_id: str


class NoPortError(RuntimeError):
    """Every port for links of replicas is in use, most of them by links that are still being removed."""


def short_id(replica_id: str) -> str:
    """Return the part of a replica's id that stands in the name of its link."""
    return "".join(letter for letter in replica_id.lower() if letter.isalnum())[-_SHORT:] or "x"


def lowest_free_slot(taken: Container[int]) -> int:
    slot = 0
    while slot in taken:
        slot += 1
    return slot


def link_name(kind: ReplicaKind, slot: int, replica_id: str, taken: Container[str]) -> str:
    """Return ``replica-<slot>.<short id>``, lengthened if that is taken: a name is never used twice at a time.

    Those of the smaller model begin with ``small-``.
    """
    name = f"{_PREFIXES[kind]}{slot}.{short_id(replica_id)}"
    again = 2
    unique = name
    while unique in taken:
        unique = f"{name}-{again}"
        again += 1
    return unique


def parse(name: str) -> Parsed | None:
    """Return what the name of a replica's link says; None when it is no such name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    kind = next((kind for kind, prefix in _PREFIXES.items() if prefix == found.group(1)), None)
    return Parsed(kind, int(found.group(2)), found.group(3).partition("-")[0]) if kind else None


class Ports:
    """Hands the ports of a range out in turn, so that one that was just freed is taken last."""

    def __init__(self, first: int, count: int) -> None:
        self._range = range(first, first + count)
        self._next = 0

    def __contains__(self, port: int) -> bool:
        return port in self._range

    def take(self, in_use: Collection[int]) -> int:
        """Return the next port that is not in use.

        Raises:
            NoPortError: all are.
        """
        for offset in range(len(self._range)):
            port = self._range[(self._next + offset) % len(self._range)]
            if port not in in_use:
                self._next = (self._next + offset + 1) % len(self._range)
                return port
        raise NoPortError(
            f"all {len(self._range)} ports from {self._range.start} are in use or held by links that cannot be "
            "removed yet; set BROWNOUT_PORT_REPLICA_LINKS to another range, or see what blocks the removals"
        )
