"""A history sorted by arm: what selectors and checkers look at.

Reading is forgiving and judging is strict: a history that was cut off still becomes an :class:`Evidence`, with
less in it, and whoever needs what is missing says *inconclusive*.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from chaos.experiment import Arm, CallClass, Experiment, FaultPlan, Load, Objective, Phases, Role, Sign
from chaos.history import (
    CalibrationRecord,
    CallRecord,
    CheckRecord,
    EffectRecord,
    EndRecord,
    FaultRecord,
    GatewayEventRecord,
    JobRecord,
    PhaseRecord,
    Record,
    RunRecord,
    SignalRecord,
)
from cluster.public import replica_label

_T = TypeVar("_T")


class EvidenceError(ValueError):
    """A history from which no experiment can be read; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as the gateway's events tell it; times are None when the event did not come."""

    request_id: str
    attempt: int
    replica: str
    started_at: float
    first_token_at: float | None
    ended_at: float | None
    outcome: str
    error: str


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """Everything that the history holds about one arm, each kind in order of time (calls: of ``n``)."""

    arm: Arm
    phases: tuple[PhaseRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    signals: tuple[SignalRecord, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    events: tuple[GatewayEventRecord, ...] = ()
    checks: tuple[CheckRecord, ...] = ()
    effects: tuple[EffectRecord, ...] = ()
    """Lines of the tool's ledger; what it says of calls is in their ``effects``."""
    jobs: tuple[JobRecord, ...] = ()

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def role(self) -> Role:
        """What the arm is for, from what it does and not from its name."""
        return self.arm.role or "control"

    @property
    def start_at(self) -> float | None:
        """The moment from which offsets count; None when the arm left nothing to tell it by."""
        if self.calls:
            return statistics.median(call.scheduled_at - call.offset_s for call in self.calls)
        return self.phases[0].at if self.phases else None

    def step(self, step: str) -> FaultRecord | None:
        """Return the first fault record of that step, or None."""
        return next((record for record in self.faults if record.step == step), None)

    def reached(self, step: str) -> frozenset[tuple[str, str]]:
        """Return (kind, label of the target) of the faults that have come to that step, and well."""
        return frozenset(
            (record.kind, replica_label(record.target))
            for record in self.faults
            if record.step == step and record.detail.get("ok") is not False
        )

    @property
    def struck_at(self) -> float | None:
        """Return when the fault began to strike: ending a process takes a moment, and ``injected`` is its end."""
        injected, condition = self.step("injected"), self.step("condition")
        if injected is None:
            return None
        if isinstance(took_s := injected.detail.get("took_s"), int | float):
            return injected.at - took_s
        return min(condition.at, injected.at) if condition else injected.at

    def phase_at(self, phase: str) -> float | None:
        """Return when a phase began, or None."""
        return next((record.at for record in self.phases if record.phase == phase), None)

    def resumed(self) -> frozenset[str]:
        """Return the ids of the requests whose stream went on from another replica."""
        return frozenset(
            str(event.detail.get("request_id", "")) for event in self.events if event.event == "resumed"
        )

    def attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts that the gateway reported, by start."""
        started: dict[tuple[str, int], GatewayEventRecord] = {}
        token: dict[tuple[str, int], float] = {}
        ended: dict[tuple[str, int], GatewayEventRecord] = {}
        for event in self.events:
            key = (str(event.detail.get("request_id", "")), int(event.detail.get("attempt") or 0))
            if event.event == "attempt_started":
                started.setdefault(key, event)
            elif event.event == "attempt_first_token":
                token.setdefault(key, event.at)
            elif event.event == "attempt_ended":
                ended.setdefault(key, event)
        return tuple(
            Attempt(
                request_id=key[0],
                attempt=key[1],
                replica=str(event.detail.get("replica", "")),
                started_at=event.at,
                first_token_at=token.get(key),
                ended_at=ended[key].at if key in ended else None,
                outcome=str(ended[key].detail.get("outcome", "")) if key in ended else "",
                error=str(ended[key].detail.get("error") or "") if key in ended else "",
            )
            for key, event in sorted(started.items(), key=lambda item: item[1].at)
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """A whole history, sorted. ``arms`` holds those that were run, in the order of the experiment."""

    experiment: Experiment
    run: RunRecord | None
    arms: tuple[ArmEvidence, ...]
    calibrations: tuple[CalibrationRecord, ...]
    checks: tuple[CheckRecord, ...]
    """Those outside the arms."""
    end: EndRecord | None

    @property
    def seed(self) -> int:
        return self.run.seed if self.run else 0

    def role(self, role: Role) -> ArmEvidence | None:
        """Return the first arm of that role that was run, or None."""
        return next((arm for arm in self.arms if arm.role == role), None)

    @property
    def scheduled_fault_s(self) -> float:
        """Offset from an arm's start at which the fault was due; the same in every arm of a seed.

        As the arms recorded it (median, their clocks differ by microseconds), else the sum of the phases before it.
        """
        offsets = [
            record.at - arm.start_at
            for arm in self.arms
            if (record := arm.step("scheduled")) is not None and arm.start_at is not None
        ]
        phases = self.experiment.phases
        return statistics.median(offsets) if offsets else phases.warm_up_s + phases.steady_s


def _only_known(kind: type[_T], raw: Mapping[str, Any]) -> _T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in raw.items() if key in known})


def experiment_from(raw: Mapping[str, Any]) -> Experiment:
    """Build the experiment that a :class:`RunRecord` carries; fields of other versions are left out.

    Raises:
        EvidenceError: a field is missing or has the wrong shape.
    """
    try:
        values = dict(raw)
        load = dict(raw["load"])
        load["classes"] = [_only_known(CallClass, one) for one in load.get("classes") or ()]
        values["load"] = _only_known(Load, load)
        values["phases"] = _only_known(Phases, raw.get("phases", {}))
        values["faults"] = [_only_known(FaultPlan, fault) for fault in raw["faults"]]
        values["objectives"] = [_only_known(Objective, objective) for objective in raw["objectives"]]
        values["signs"] = [_only_known(Sign, sign) for sign in raw.get("signs") or ()]
        if "arms" in raw:
            values["arms"] = [_only_known(Arm, arm) for arm in raw["arms"]]
        return _only_known(Experiment, values)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EvidenceError(f"the run record holds no experiment that can be read: {error!r}") from error


def sort(records: Iterable[Record], experiment: Experiment | None = None) -> Evidence:
    """Sort a history by arm.

    Args:
        records: as :func:`chaos.history.read` yields them.
        experiment: judge by this one and not by the one in the history, e.g. with new objectives.

    Raises:
        EvidenceError: there is no run record and no experiment was given.
    """
    every = list(records)
    run = next((record for record in every if isinstance(record, RunRecord)), None)
    if experiment is None:
        if run is None:
            raise EvidenceError("the history has no run record: its first line is missing")
        experiment = experiment_from(run.experiment)
    planned = {arm.name: arm for arm in experiment.arms}
    # An arm that is in the history but not in the experiment is judged by what its faults say.
    for record in every:
        if record.arm and record.arm not in planned:
            profile = "naive" if record.arm == "naive" else "resilient"
            planned[record.arm] = Arm(record.arm, profile, fault=record.arm != "control")
    seen = {record.arm for record in every if record.arm}
    return Evidence(
        experiment=experiment,
        run=run,
        arms=tuple(_arm(arm, every) for name, arm in planned.items() if name in seen),
        calibrations=tuple(r for r in every if isinstance(r, CalibrationRecord)),
        checks=tuple(r for r in every if isinstance(r, CheckRecord) and not r.arm),
        end=next((r for r in every if isinstance(r, EndRecord)), None),
    )


def _arm(arm: Arm, every: list[Record]) -> ArmEvidence:
    mine = [record for record in every if record.arm == arm.name]

    def timed(kind: type[_T]) -> tuple[_T, ...]:
        found = [record for record in mine if isinstance(record, kind)]
        return tuple(sorted(found, key=lambda record: record.at))  # type: ignore[attr-defined]

    effects, checks = timed(EffectRecord), timed(CheckRecord)
    calls = sorted((r for r in mine if isinstance(r, CallRecord)), key=lambda call: call.n)
    if any(check.name == "ledger_read" and check.ok for check in checks):
        happened = Counter(effect.sender for effect in effects)
        calls = [replace(call, effects=happened[call.effect]) if call.effect else call for call in calls]
    return ArmEvidence(
        arm=arm,
        phases=timed(PhaseRecord),
        calls=tuple(calls),
        signals=timed(SignalRecord),
        faults=timed(FaultRecord),
        events=timed(GatewayEventRecord),
        checks=checks,
        effects=effects,
        jobs=timed(JobRecord),
    )
