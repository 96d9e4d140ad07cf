"""A second local cluster beside one that may be up: ports and a run folder of its own, and nothing left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import processes
from cluster.public import REPLICA_LINK_PORTS
from cluster.settings import Settings
from tests.ports import free_ports

INGRESS_PORTS = 20
"""As many as a few replicas can come to use."""
PORTS = [name for name in Settings.model_fields if name.startswith("port_")]


@contextmanager
def second_cluster(*, serves: bool = False) -> Iterator[dict[str, str]]:
    """Give the environment of a second cluster; whatever it leaves is ended and told.

    One that ``serves`` comes up for good: the two ranges of ports that begin at a port of the settings are kept
    free as well.
    """
    # short: Unix sockets lie below it
    run_dir = Path("/tmp") / f"bo-{os.getpid()}-{time.monotonic_ns() % 100000}"
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    if serves:
        ports["port_replica_links"] = free_ports(REPLICA_LINK_PORTS)[0]
        ports["port_ingress"] = free_ports(INGRESS_PORTS)[1]  # Serve's own proxy takes the port before it
    made = {**os.environ, "BROWNOUT_RUN_DIR": str(run_dir)}
    made |= {f"BROWNOUT_{name.upper()}": str(port) for name, port in ports.items()}
    try:
        yield made
    finally:
        left = processes.belonging(run_dir)
        processes.end(left)
        subprocess.run(["rm", "-rf", str(run_dir)], check=True)
    assert not left


def run_dir_of(env: dict[str, str]) -> Path:
    return Path(env["BROWNOUT_RUN_DIR"])


def local(command: str, env: dict[str, str], timeout_s: float = 120) -> tuple[int, str]:
    """Run ``python -m cluster.local`` to its end; return exit code and all output."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster.local", command],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
