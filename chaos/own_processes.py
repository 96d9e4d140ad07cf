"""The processes that a run answers for on this machine: itself, the local cluster, and what both have started."""

from __future__ import annotations

import contextlib
import os

import psutil

from cluster.public import ClusterState


def own_processes() -> list[psutil.Process]:
    """Return them, each once; those that end meanwhile may be among them."""
    state = ClusterState.load()
    found: dict[int, psutil.Process] = {}
    for root in (os.getpid(), *(record.pid for record in (state.processes if state else ()))):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(root)
            found.update((one.pid, one) for one in (process, *process.children(recursive=True)))
    return list(found.values())
