"""Ports for what a test starts itself, one place for all tests.

A port that the kernel gives out ("bind to 0, close, bind again later") lies in the range from which it takes
those of outgoing connections too: with a cluster up beside the test, one is often gone before it is bound.
So these come from below that range, and no port is handed out twice.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import closing
from typing import Final

_FIRST: Final = 22000
_COUNT: Final = 7000
"""Up to 28999: links of replicas listen from 21000 up, Ray Serve from 30000 up; the kernel takes from 32768 up."""

_SHARES: Final = 8
"""Processes that run tests side by side (pytest-xdist) have a part of the range each; the ninth shares the first's."""


def _part_of(worker: str) -> tuple[int, int]:
    """Return the offset of this process's part of the range and how many ports are in it."""
    if not worker:
        return 0, _COUNT
    size = _COUNT // _SHARES
    return int(worker.removeprefix("gw")) % _SHARES * size, size


_OFFSET, _SIZE = _part_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
_next = itertools.count(os.getpid() * 61 % _SIZE)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now and that no other caller in this process has got.

    Raises:
        AssertionError: too few are free.
    """
    found: list[int] = []
    for offset in itertools.islice(_next, _SIZE):
        port = _FIRST + _OFFSET + offset % _SIZE
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(
        f"only {len(found)} of {count} ports are free of the {_SIZE} from {_FIRST + _OFFSET} up"
    )


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
