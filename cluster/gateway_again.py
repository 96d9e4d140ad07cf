"""The gateway of a running local cluster, started again: after it was killed, or to run with other settings."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from cluster import processes
from cluster.bring_up import LocalError, responds
from cluster.exported import FILE, Exported
from cluster.processes import LOGS
from cluster.public import GATEWAY_PROCESS, ClusterState, ProcessRecord

READY_WITHIN_S: Final = 60.0


def have_gateway(run_dir: Path, changes: Mapping[str, str] | None = None) -> ProcessRecord:
    """Have the gateway running, and return it once it can answer calls.

    Args:
        run_dir: where the cluster keeps its state.
        changes: environment variables that differ from what ``up`` exported; a gateway that runs with others is ended
            first. None leaves them as they are: what was killed starts as it was, what runs is left alone.

    Raises:
        LocalError: there is no cluster, or the gateway did not become ready.
    """
    state, exported = ClusterState.load(run_dir), _exported(run_dir)
    if state is None:
        raise LocalError(f"there is no cluster in {run_dir}; 'brownout up --on local' starts one")
    wanted = exported if changes is None else dataclasses.replace(exported, gateway=dict(changes))
    alive = [one for one in state.processes if one.name == GATEWAY_PROCESS and processes.alive(one)]
    if not alive or wanted != exported:
        for record in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.end([psutil.Process(record.pid)], grace_s=3.0)
        wanted.save(run_dir)
        environment = wanted.environment(os.environ)
        command, log = [sys.executable, "-m", "cluster.gateway"], run_dir / LOGS / f"{GATEWAY_PROCESS}.log"
        process, started = processes.start(GATEWAY_PROCESS, command, environment, log)
        process.returncode = 0  # it outlives this process, which Python would take for a mistake
        others = tuple(one for one in state.processes if one.name != GATEWAY_PROCESS)
        # On disk before it is waited for, so that 'down' finds it whatever happens.
        dataclasses.replace(state, processes=(*others, started)).save(run_dir)
        alive = [started]
    _wait(state, alive[-1])
    return alive[-1]


def _wait(state: ClusterState, gateway: ProcessRecord) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while not responds(f"{state.admin_url}/readyz"):
        if not processes.alive(gateway):
            raise LocalError(f"the gateway has ended again; its log is in {state.logs}")
        if time.monotonic() > deadline:
            raise LocalError(
                f"the gateway is not ready after {READY_WITHIN_S:g} s; its log is in {state.logs}"
            )
        time.sleep(0.05)


def _exported(run_dir: Path) -> Exported:
    try:
        return Exported.load(run_dir)
    except (OSError, ValueError, TypeError) as error:
        raise LocalError(
            f"{run_dir / FILE} cannot be read ({error}), so nobody knows how the gateway was started; "
            f"'brownout down' and 'brownout up --on local' start everything afresh"
        ) from error
