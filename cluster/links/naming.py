"""Names, slots and ports of the links of replicas."""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from typing import Final

from cluster.public import REPLICA_LABEL_PREFIX

_SHORT: Final = 5
_NAME: Final = re.compile(re.escape(REPLICA_LABEL_PREFIX) + r"(\d+)\.([^/]+)")


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


def link_name(slot: int, replica_id: str, taken: Container[str]) -> str:
    """Return ``replica-<slot>.<short id>``, lengthened if that is taken: a name is never used twice at a time."""
    name = f"{REPLICA_LABEL_PREFIX}{slot}.{short_id(replica_id)}"
    again = 2
    unique = name
    while unique in taken:
        unique = f"{name}-{again}"
        again += 1
    return unique


def parse(name: str) -> tuple[int, str] | None:
    """Return slot and short id of the name of a replica's link; None when it is no such name."""
    found = _NAME.fullmatch(name)
    return (int(found.group(1)), found.group(2).partition("-")[0]) if found else None


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
