"""The lifecycle of an experiment, and nothing else: ready, calibrate, then each arm, then the history is closed.

What happens within a step lives in the step's own module. Judging is not here: it reads the closed history.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from chaos.admin import Admin
from chaos.arm import ArmRun
from chaos.bounds import DEFAULT_BOUNDS, Bounds
from chaos.capacity import Calibration
from chaos.experiment import Experiment
from chaos.faults import FaultContext
from chaos.heal import profile_kept, settings_lent
from chaos.history import CalibrationRecord, CheckRecord, EndRecord, HistoryWriter, Record, RunRecord
from chaos.load.client import LoadClient
from chaos.load.plan import make_plan
from chaos.load.prompts import SYMBOLS, Ask
from chaos.load.rate import RateMemory, offered
from chaos.progress import Progress
from chaos.recovery import all_serving
from chaos.shared_capacity import SharedCapacity
from chaos.strike import Strike
from chaos.substrate import Substrate, SubstrateError
from chaos.tenants import made_for, settings_of
from chaos.undo import UndoLog

HISTORY = "history.jsonl"
READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """How an experiment is run. ``rate_per_s`` replaces the calibrated share; ``run_dir`` holds undo log and rates."""

    seed: int
    run_dir: Path
    rate_per_s: float | None = None
    bounds: Bounds = DEFAULT_BOUNDS
    shared: SharedCapacity | None = None
    """Where capacities are looked up before they are measured; None to measure in each run."""


async def run(
    experiment: Experiment, substrate: Substrate, folder: Path, options: Options, progress: Progress
) -> Path:
    """Run every arm and return the path of the closed history in ``folder``.

    Whatever ends the run, cancellation included, faults are reverted and the history is closed, with the reason
    in its last line.

    Raises:
        SubstrateError, FaultError, CalibrationError, UnknownName: it could not be run.
    """
    path = folder / HISTORY
    history = HistoryWriter(path)
    reason = "interrupted"
    try:
        endpoints = await substrate.endpoints()
        history.write(_run_record(experiment, substrate, options))
        undo = UndoLog(options.run_dir)
        tenants = await made_for(experiment, substrate, options.run_dir)
        lent = settings_lent(substrate, undo, settings_of(experiment, tenants), tenants.file)
        async with lent, Admin(endpoints, tenants.keys.get("", "")) as admin:
            context = FaultContext(substrate, endpoints, admin, tenants=tenants)
            model = await admin.model()
            deadline_s = experiment.load.client_deadline_s
            kept = profile_kept(admin, undo, substrate.name)
            async with LoadClient(endpoints.base_url, model, deadline_s, tenants.keys) as client, kept:
                await _Run(experiment, context, client, options, history, progress).go()
        reason = "completed"
    except Exception as error:
        reason = f"failed: {type(error).__name__}: {error}"
        raise
    finally:
        history.write(EndRecord(time.time(), reason))
        history.close()
    return path


@dataclass
class _Run:
    experiment: Experiment
    context: FaultContext
    client: LoadClient
    options: Options
    history: HistoryWriter
    progress: Progress

    async def go(self) -> None:
        options, experiment = self.options, self.experiment
        undo = UndoLog(options.run_dir)
        replicas = await self._ready(undo)
        run_id = f"{options.seed}-{int(time.time()) % 10**6:06d}"
        capacity = await self._capacity(replicas, undo, run_id)
        rate_per_s = self._rate(capacity, replicas)
        plan = make_plan(experiment, rate_per_s, options.seed)
        for arm in experiment.arms:
            await ArmRun(
                self.context,
                self.client,
                experiment,
                arm,
                plan,
                options.seed,
                run_id,
                replicas,
                undo,
                options.bounds,
                self.progress,
                self.history,
            ).run()

    async def _capacity(self, replicas: int, undo: UndoLog, run_id: str) -> dict[int, float]:
        """Return the calls per second by number of live replicas: as measured here, or earlier on this very cluster."""
        experiment, options = self.experiment, self.options
        shared, with_loss = options.shared, experiment.calibrate_loss
        key = (
            SharedCapacity.key(self.context.substrate, experiment.load, with_loss=with_loss) if shared else ""
        )
        found = shared.find(key) if shared else ()
        for record in found:
            self.history.write(record)
        if found:
            age_s = round(time.time() - min(record.measured_at for record in found), 1)
            detail = {"run": f"{experiment.name} {found[0].shared_from}", "age_s": age_s}
            self.history.write(CheckRecord("", "capacity_shared", True, time.time(), detail))
            self.progress.say(f"capacity as measured {age_s:.0f} s ago on this cluster")
            return {record.replicas: record.calls_per_s for record in found}
        measured: list[CalibrationRecord] = []
        doubts: list[Record] = []

        def sink(record: Record) -> None:
            self.history.write(record)
            measured.append(record) if isinstance(record, CalibrationRecord) else doubts.append(record)

        calibration = Calibration(
            self.context,
            self.client,
            experiment.load,
            options.seed,
            undo,
            options.bounds,
            self.progress,
            sink,
        )
        capacity = await calibration.measure(replicas, with_loss=with_loss)
        if shared and not doubts:  # what is in doubt is measured again by the next
            shared.keep(key, measured, run_id)
        return {number: found.calls_per_s for number, found in capacity.items()}

    async def _ready(self, undo: UndoLog) -> int:
        """Return the number of replicas once each has answered and every fault's target is known to exist."""
        configured = self.context.substrate.settings().get("replicas")
        expected = int(configured) if configured else len(await self.context.admin.replica_links())
        found = await all_serving(
            self.context.admin, self.client, max(expected, 1), (), READY_WITHIN_S, self.options.bounds.poll_s
        )
        if not found.ok:
            raise SubstrateError(
                f"not every one of {expected} replicas answers ({found.detail}); 'brownout status' tells what runs"
            )
        if self.experiment.load.tool:
            await self._tool_ready()
        strike = Strike(
            self.context,
            self.experiment,
            "",
            self.options.seed,
            undo,
            self.options.bounds,
            self.history.write,
        )
        await strike.resolve()
        return expected

    async def _tool_ready(self) -> None:
        """A tool that fails without any fault would make every arm look alike."""
        asked = Ask("probe of the tool", max_tokens=2, stream=True, tool_symbol=SYMBOLS[0])
        record = await self.client.call(asked, "", 0, 0.0, time.time(), f"probe-tool-{time.time_ns():x}")
        if record.outcome != "ok":
            raise SubstrateError(
                f"a call with a tool is {record.outcome} before any fault (tool: {record.tool or 'no answer'}, "
                f"{record.error or 'no error'}); see the logs of gateway and tool"
            )

    def _rate(self, capacity: dict[int, float], replicas: int) -> float:
        """Return the calls per second to offer, and write down where the number comes from."""
        load, options = self.experiment.load, self.options
        left = replicas - load.of_replicas_lost
        calls_per_s = capacity.get(left) or capacity[replicas] * left / replicas
        asked = calls_per_s * load.share
        memory = RateMemory(options.run_dir / "rates.json")
        substrate = self.context.substrate
        key = memory.key(self.experiment.name, asdict(load), substrate.name, substrate.settings())
        rate_per_s = options.rate_per_s or offered(asked, memory.earlier(key))
        if options.rate_per_s is None:
            memory.keep(key, rate_per_s)
        detail = {
            "rate_per_s": rate_per_s,
            "share_asked": load.share,
            "share_offered": round(rate_per_s / calls_per_s, 4),
            "of_capacity_calls_per_s": round(calls_per_s, 3),
            "replicas": left,
        }
        self.history.write(CheckRecord("", "offered_load", True, time.time(), detail))
        self.progress.say(
            f"offering {rate_per_s:g} calls/s: {rate_per_s / calls_per_s:.2f} of what {left} replicas carry"
        )
        return rate_per_s


def _run_record(experiment: Experiment, substrate: Substrate, options: Options) -> RunRecord:
    memory = psutil.virtual_memory()
    return RunRecord(
        experiment=asdict(experiment),
        substrate=substrate.name,
        seed=options.seed,
        without=sorted({policy for arm in experiment.arms for policy in arm.without}),
        versions=substrate.versions(),
        machine={
            "cpus": os.cpu_count(),
            "memory_bytes": memory.total,
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        settings={**substrate.settings(), "bounds": asdict(options.bounds), "rate_per_s": options.rate_per_s},
        started_at=time.time(),
    )
