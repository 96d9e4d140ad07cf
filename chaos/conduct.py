"""One run from start to end, for the command line and for tests: lock, heal, cluster up, run, judge, cluster down."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.bounds import DEFAULT_BOUNDS, Bounds
from chaos.experiment import Experiment
from chaos.heal import heal
from chaos.progress import Progress
from chaos.runner import HISTORY, Options, run
from chaos.shared_capacity import SharedCapacity
from chaos.substrate import NotRunningError, Substrate
from chaos.undo import UndoLog, run_lock
from cluster.public import default_run_dir

_LOAD_PRIORITY: Final = -10


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be run. ``folder`` None makes one below ``reports/``; ``up`` starts the cluster if it is not up."""

    experiment: Experiment
    seed: int
    folder: Path | None = None
    up: bool = False
    rate_per_s: float | None = None
    run_dir: Path | None = None
    bounds: Bounds = DEFAULT_BOUNDS
    shared: SharedCapacity | None = None


class FolderTakenError(ValueError):
    """The report folder already has a history; nothing is overwritten. Exit code 4."""


def report_folder(experiment: str, substrate: str, seed: int) -> Path:
    """Return ``reports/<scenario>-<substrate>-seed<seed>-<time>``."""
    return Path("reports") / f"{experiment}-{substrate}-seed{seed}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextlib.contextmanager
def _first_in_line() -> Iterator[None]:
    """Give the load client the processor before what it measures, where that is permitted.

    On a machine that they share, replicas that are busy with long prompts would make its calls leave late.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, min(before, _LOAD_PRIORITY))
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextlib.asynccontextmanager
async def _running(substrate: Substrate, up: bool, progress: Progress) -> AsyncIterator[None]:
    """Have the substrate up during the block; one that was not up before, and only such a one, is taken down after."""
    try:
        await substrate.endpoints()
    except NotRunningError:
        if not up:
            raise
    else:
        yield
        return
    try:
        progress.say(f"bringing the cluster up on {substrate.name}")
        await substrate.up()
        yield
    finally:
        progress.say("taking the cluster down")
        await substrate.down()


async def conduct(request: Request, substrate: Substrate, progress: Progress) -> Path:
    """Run an experiment and return the path of its closed history.

    Raises:
        FolderTakenError: the folder already holds a history.
        SubstrateError, FaultError, CalibrationError, UnknownName: it could not be run.
    """
    experiment = request.experiment
    folder = request.folder or report_folder(experiment.name, substrate.name, request.seed)
    if (folder / HISTORY).exists():
        raise FolderTakenError(f"{folder / HISTORY} exists already; choose another folder with --out")
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise FolderTakenError(
            f"no report can be written to {folder}: {above} is no folder that can be written to"
        )
    run_dir = request.run_dir or default_run_dir()
    with run_lock(run_dir):
        for what in await heal(UndoLog(run_dir), substrate):
            progress.say(f"left by an earlier run: {what}")
        async with _running(substrate, request.up, progress):
            options = Options(request.seed, run_dir, request.rate_per_s, request.bounds, request.shared)
            with _first_in_line():
                return await run(experiment, substrate, folder, options, progress)
