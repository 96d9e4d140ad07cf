"""Write-ahead undo log: what is in force is on disk before it is injected, so that a killed run can be healed.

One small file a fault in ``<run dir>/undo``. It is removed when the fault is reverted; whatever is found there by
a command that holds the run lock was left by a run that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaos.substrate import SubstrateError
from cluster.public import claim_run_dir


@dataclass(frozen=True, slots=True)
class UndoEntry:
    """One fault that is, or may be, in force: its kind and what its class needs to revert it."""

    id: str
    kind: str
    substrate: str
    target: str
    data: dict[str, Any]
    at: float
    """When it was written, in seconds since the epoch."""


class UndoLog:
    """The entries of one run folder, oldest first."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "undo"

    def add(self, kind: str, substrate: str, target: str, data: dict[str, Any]) -> UndoEntry:
        """Write an entry; it is on the disk, file and name, when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        at = time.time()
        entry = UndoEntry(f"{at:.6f}-{uuid.uuid4().hex[:8]}", kind, substrate, target, data, at)
        scratch = self.folder / f"{entry.id}.tmp"
        with scratch.open("w") as file:
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(self.folder / f"{entry.id}.json")
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return entry

    def remove(self, entry: UndoEntry) -> None:
        """Forget an entry: its fault is reverted. Safe twice."""
        (self.folder / f"{entry.id}.json").unlink(missing_ok=True)

    def entries(self) -> list[UndoEntry]:
        """Return what is in force, oldest first. A file that is no entry is set aside, as ``*.unreadable``."""
        found: list[UndoEntry] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                found.append(UndoEntry(**json.loads(path.read_text())))
            except FileNotFoundError:
                continue
            except (ValueError, TypeError):
                path.rename(path.with_suffix(".unreadable"))
        return found


@contextlib.contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run folder: one run at a time breaks a cluster, and leftovers are known to be leftovers.

    The lock is the kernel's and ends with its process, however that ends.

    Raises:
        SubstrateError: another run holds it, or the folder cannot be used.
    """
    try:
        claim_run_dir(run_dir)
    except OSError as error:
        raise SubstrateError(f"{error}; the run folder is {run_dir} (BROWNOUT_RUN_DIR moves it)") from error
    with (run_dir / "run.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise SubstrateError(
                f"another run is going on in {run_dir} (pid {holder}); wait for it or end it first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
