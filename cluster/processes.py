"""Processes of a local cluster: started with a mark, found again by it, and ended by id and never by name.

A process belongs to a run when it carries the run's mark in its environment, or when its standard output
or error goes to a log of the run. The second sign is needed because Ray's workers rename
themselves and overwrite the memory in which Linux keeps the environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from cluster.public import RUN_MARK, ProcessRecord


def start(
    name: str, command: list[str], env: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], ProcessRecord]:
    """Start ``command`` in a session of its own, with both outputs appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    return process, ProcessRecord(name, process.pid, created)


def alive(record: ProcessRecord) -> bool:
    """Tell whether that very process (not a later one with the same pid) still runs."""
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.created_at) < 0.5
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


LOGS: Final = "logs"
RAY_TEMP: Final = "r"
"""Ray's folder below the run folder; short, because Unix sockets lie below it."""


def _writes_below(pid: int, folders: tuple[str, ...]) -> bool:
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(folders):
                return True
    return False


def belonging(run_dir: Path, mark: str | None = None) -> list[psutil.Process]:
    """Return this user's live processes that belong to the cluster in ``run_dir``, but not the caller's own line."""
    folders = tuple(str(run_dir.resolve() / name) + os.sep for name in (LOGS, RAY_TEMP))
    wanted = f"{RUN_MARK}={mark}" if mark else None
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            marked = wanted is not None and wanted.encode() in Path(
                f"/proc/{process.pid}/environ"
            ).read_bytes().split(b"\0")
            if marked or _writes_below(process.pid, folders):
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process], grace_s: float = 8.0) -> None:
    """Ask with SIGTERM, wait up to ``grace_s`` seconds, then SIGKILL what is left."""
    asked = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
            asked.append(process)
    _, left = psutil.wait_procs(asked, timeout=grace_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=grace_s)


def end_all(run_dir: Path, records: Iterable[ProcessRecord], mark: str | None, grace_s: float = 8.0) -> int:
    """End the recorded processes, then whatever else belongs to the run; return how many there were.

    Three sweeps, because a supervisor can start a child while it is being ended.
    """
    first = []
    for record in records:
        if alive(record):
            with contextlib.suppress(psutil.NoSuchProcess):
                first.append(psutil.Process(record.pid))
    tree = [child for process in first for child in _children(process)]
    end(first, grace_s)
    ended = len(first)
    for _ in range(3):
        rest = {process.pid: process for process in belonging(run_dir, mark)}
        rest.update({process.pid: process for process in tree if _runs(process)})
        if not rest:
            break
        ended += len(rest)
        end(rest.values(), grace_s)
        time.sleep(0.05)
    return ended


def _runs(process: psutil.Process) -> bool:
    """Tell whether it is more than a zombie that its parent has not reaped."""
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def holder_of_port(port: int) -> str:
    """Return who listens on a TCP port of this machine, in words."""
    with contextlib.suppress(psutil.AccessDenied):
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr.port == port
                and connection.pid is not None
            ):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(connection.pid)
                    return f"pid {connection.pid} ({' '.join(process.cmdline())[:80] or process.name()})"
    return "another process"
