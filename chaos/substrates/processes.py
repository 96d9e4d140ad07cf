"""Processes of a local cluster as seen from outside: who listens, who belongs to whom, who is left over."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

SAME_START_S = 0.5
ENGINE_TITLE = "EngineCore"
REPLICA_TITLE = "ServeReplica:llm"
NODE_NAME = "raylet"


def listeners() -> dict[int, int]:
    """Return the pid that listens on each TCP port of this machine, as far as this user may know."""
    return {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid is not None
    }


def family(pid: int) -> list[tuple[int, float]]:
    """Return (pid, start time) of a process and all below it, the process itself first."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    found = []
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append((member.pid, member.create_time()))
    return found


def alive(pid: int, created_at: float) -> bool:
    """Tell whether that very process, and not a later one with the same pid, still runs."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created_at) < SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _writes_below(pid: int, folder: str) -> bool:
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(folder):
                return True
    return False


def members(run_dir: Path) -> dict[int, int]:
    """Return pid and parent's pid of all processes that belong to replicas of the cluster in ``run_dir``.

    They are told by their titles, and by their output, which goes below that folder.
    """
    folder = str(run_dir.resolve()) + os.sep
    found: dict[int, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline()) or process.name()
            ours = (ENGINE_TITLE in title or REPLICA_TITLE in title) and _writes_below(process.pid, folder)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.ppid()
    return found


def replica_heads(run_dir: Path) -> list[int]:
    """Return the pids of the replicas' own processes, starting ones too.

    A replica's engine may bear its replica's title, so a replica is told by its parent, which is the Ray node.
    """
    return sorted(pid for pid, parent in members(run_dir).items() if _is_ray_node(parent))


def stop(pid: int) -> None:
    """Hold a process where it is, until :func:`resume`."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """Let a process go on that :func:`stop` held; does nothing to one that was not held."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def stopped(pid: int) -> bool:
    """Tell whether a process is held by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def resume(run_dir: Path) -> list[int]:
    """Let every held replica process of the cluster go on, and return their pids."""
    held = []
    for pid in replica_heads(run_dir):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                os.kill(pid, signal.SIGCONT)
                held.append(pid)
    return held


def leftovers(run_dir: Path, replicas_wanted: int) -> list[str]:
    """Return, in words, processes that have outlived their replica, and replicas beyond the wanted number."""
    found = members(run_dir)
    heads = [pid for pid, parent in found.items() if parent not in found]
    replicas = [pid for pid in heads if _is_ray_node(found[pid])]
    left = [f"process {pid} of a replica has outlived it" for pid in heads if pid not in replicas]
    if len(replicas) > replicas_wanted:
        pids = ", ".join(map(str, sorted(replicas)))
        left.append(f"{len(replicas)} replica processes ({pids}), {replicas_wanted} are configured")
    return left


def _is_ray_node(pid: int) -> bool:
    try:
        return NODE_NAME in psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return False
