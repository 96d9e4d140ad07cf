"""For your own test suite: an experiment in a few lines of pytest.

>>> from chaos.testing import run_experiment                                    # doctest: +SKIP
>>> def test_survives_the_loss_of_a_worker():                                   # doctest: +SKIP
...     verdict = run_experiment("worker_loss", on="local", seed=7)
...     assert verdict.status == "pass", verdict.deciding
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos import report
from chaos.bounds import DEFAULT_BOUNDS, Bounds
from chaos.conduct import Request, conduct
from chaos.experiment import Experiment
from chaos.progress import LineProgress, Progress
from chaos.scenarios import scenario
from chaos.shared_capacity import SharedCapacity
from chaos.substrate import Substrate
from chaos.substrates import substrate
from chaos.tailor import tailored
from chaos.verdict import Verdict

_MEASURED: Final = SharedCapacity()
"""What this process has measured, for runs that may share it."""


def run_experiment(
    experiment: str | Experiment,
    *,
    on: str | Substrate = "local",
    seed: int = 7,
    arms: Sequence[str] = (),
    without: Sequence[str] = (),
    out: Path | None = None,
    up: bool = True,
    repeats: int = 1,
    progress: Progress | None = None,
    bounds: Bounds = DEFAULT_BOUNDS,
    share_capacity: bool = False,
) -> Verdict:
    """Run an experiment, write its report folder, and return the verdict.

    Args:
        experiment: the name of a scenario, or an Experiment of your own.
        on: the name of a substrate, or one of your own.
        seed: arrivals, prompts, target and the fault's time follow from it.
        arms: only these arms; all when empty.
        without: policies to switch off in the resilient arm.
        out: the report folder; default one below ``reports/``.
        up: bring the cluster up when it is not, and down again afterwards.
        repeats: how often to run again while the verdict is *inconclusive*, which is neither pass nor fail: most often
            something else had the machine. A fail is never repeated. Each run has a folder: ``out``, ``out-2``, ...
        share_capacity: take the capacity from an earlier run of this process with the same mix of calls on the same
            cluster, where there is one less than half an hour old; the history says so.

    Raises:
        SubstrateError, FaultError, CalibrationError: it could not be run.
        UnknownName: no such scenario, substrate, arm or policy.
    """
    chosen = scenario(experiment) if isinstance(experiment, str) else experiment
    place = substrate(on) if isinstance(on, str) else on
    request = Request(tailored(chosen, arms=arms, without=without), seed, out, up, bounds=bounds)
    if share_capacity:
        request = replace(request, shared=_MEASURED)
    shown = progress or LineProgress()
    for number in range(1, repeats + 2):
        folder = out if out is None or number == 1 else out.with_name(f"{out.name}-{number}")
        with _light_heap():
            history = asyncio.run(conduct(replace(request, folder=folder), place, shown))
        verdict = report.write(history, history.parent)
        if verdict.status != "inconclusive" or number > repeats:
            break
        if share_capacity:
            _MEASURED.forget()
        shown.say(f"inconclusive, so once more: {'; '.join(check.summary for check in verdict.deciding)}")
    return verdict


@contextlib.contextmanager
def _light_heap() -> Iterator[None]:
    """Leave what the process has piled up so far out of garbage collection for the block.

    After some thousand tests a full collection stops the process for half a second, and calls leave that much late.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
