"""Which signal moved first, and how long before the users felt it: the answer to "what should have paged us?".

A signal has *moved* when, after the fault, it leaves the range that it had in the arm's steady phase by more than
half of that range's width (and at least by the signal's own smallest step of interest) for two samples in a row;
the first of the two counts. The control arm is put through the same rule: a signal that moves there too moves by
itself, and is not called a warning. Users *feel* the fault when the first call ends without an answer, or has waited
for its first token as long as the objective allows. All count from the moment at which the fault began to strike:
a kill takes a moment, and connections may be lost before it returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.evidence import ArmEvidence, Evidence
from chaos.history import CallRecord
from chaos.measures import Measures
from chaos.slo import answered


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """One of the sampled signals: the field of :class:`~chaos.history.SignalRecord` and how to show it."""

    name: str
    title: str
    unit: str
    step: float
    """The smallest change of interest, in the signal's own unit."""
    meaning: str


SIGNALS: Final = (
    SignalSpec("queue_depth", "Queue depth", "calls", 2.0, "calls that have no first token yet"),
    SignalSpec("ttft_p95_s", "TTFT p95 at the gateway", "s", 0.05, "of the first tokens of the last seconds"),
    SignalSpec("active_tokens", "Active tokens", "tokens", 200.0, "work outstanding at the replicas"),
    SignalSpec("cache_occupancy", "KV cache occupancy", "ratio", 0.05, "mean share of KV blocks in use"),
    SignalSpec("reject_rate", "Reject rate", "ratio", 0.01, "share of recent calls that were refused"),
    SignalSpec("retry_rate", "Retry rate", "ratio", 0.01, "retries for each recent call"),
    SignalSpec("headroom", "Headroom", "ratio", 0.1, "1 - offered work / capacity; below 0 is saturated"),
    SignalSpec("live_replicas", "Live replicas", "replicas", 0.5, "replicas in rotation"),
    SignalSpec("preemptions", "Preemptions", "sequences", 1.0, "sequences thrown out for want of cache"),
)
ATTEMPT_ERRORS: Final = SignalSpec(
    "attempt_errors", "Failed attempts", "attempts", 1.0, "attempts at a replica that failed"
)


@dataclass(frozen=True, slots=True)
class Movement:
    """When one signal moved, in seconds after the fault of its arm; None when it did not or was not sampled."""

    signal: SignalSpec
    after_s: float | None
    sampled: bool
    in_control: bool
    """It left its range in the control arm as well, where nothing happened."""


@dataclass(frozen=True, slots=True)
class EarlyWarning:
    """What an arm's signals said, against what its users felt; seconds after the fault."""

    arm: str
    movements: tuple[Movement, ...]
    felt_after_s: float | None
    felt_by: str
    """What the first user who felt it saw, in words."""
    limit_s: float | None
    """The wait for a first token that counts as felt; of the class with the shortest."""

    @property
    def earliest(self) -> Movement | None:
        """Return the first signal that moved and does not move by itself."""
        moved = [m for m in self.movements if m.after_s is not None and not m.in_control]
        return min(moved, key=lambda m: m.after_s if m.after_s is not None else math.inf, default=None)

    @property
    def lead_s(self) -> float | None:
        """Return how long before the users felt it the earliest signal moved; negative when after."""
        first = self.earliest
        if first is None or first.after_s is None or self.felt_after_s is None:
            return None
        return self.felt_after_s - first.after_s


def moved_at(
    samples: Iterable[tuple[float, float | None]], since: float, fault_at: float, step: float
) -> float | None:
    """Return when a signal left its earlier range, by the rule of this module; None when it did not.

    Args:
        samples: (time, value) in order of time; values that are None are skipped.
        since: where the range begins to be learnt, e.g. the beginning of the steady phase.
        fault_at: where it ends, and from where on movement counts.
        step: smallest distance from the range that counts.
    """
    known = [(at, value) for at, value in samples if value is not None]
    before = [value for at, value in known if since <= at < fault_at]
    after = [(at, value) for at, value in known if at >= fault_at]
    if len(before) < 2:
        return None
    low, high = min(before), max(before)
    reach = max(step, (high - low) / 2)

    def outside(value: float) -> bool:
        return value <= low - reach or value >= high + reach

    return next((a[0] for a, b in pairwise(after) if outside(a[1]) and outside(b[1])), None)


def _fault_at(evidence: Evidence, arm: ArmEvidence) -> float | None:
    if arm.arm.fault and arm.struck_at is not None:
        return arm.struck_at
    return None if arm.start_at is None else arm.start_at + evidence.scheduled_fault_s


def _movement(arm: ArmEvidence, spec: SignalSpec, fault_at: float) -> tuple[float | None, bool]:
    values = [(record.at, getattr(record, spec.name)) for record in arm.signals]
    since = arm.phase_at("steady") or (arm.start_at or fault_at)
    at = moved_at(values, since, fault_at, spec.step)
    return (None if at is None else at - fault_at), any(value is not None for _, value in values)


def _attempt_errors(arm: ArmEvidence, fault_at: float) -> Movement:
    attempts = arm.attempts()
    failed = [a.ended_at for a in attempts if a.outcome == "failed" and a.ended_at is not None]
    first = min((at for at in failed if at >= fault_at), default=None)
    return Movement(
        ATTEMPT_ERRORS, None if first is None else first - fault_at, bool(attempts), in_control=False
    )


def _felt(
    calls: Iterable[CallRecord], fault_at: float, limit_of: Callable[[CallRecord], float]
) -> tuple[float | None, str]:
    felt: list[tuple[float, str]] = []
    for call in calls:
        if call.ended_at < fault_at:
            continue
        limit_s = limit_of(call)
        if not answered(call):
            felt.append((call.ended_at, f"call {call.n} ended {call.outcome}"))
        if call.stream and call.ended_at - call.scheduled_at > limit_s:
            waited_until = call.scheduled_at + limit_s
            first = call.first_token_at
            if (first is None or first > waited_until) and waited_until >= fault_at:
                felt.append(
                    (waited_until, f"call {call.n} waited longer for its first token than {limit_s:.2g} s")
                )
    if not felt:
        return None, "nobody felt it"
    at, what = min(felt)
    return at - fault_at, what


def warnings(measures: Measures) -> tuple[EarlyWarning, ...]:
    """Return, for each arm with a fault, which signals moved when, and when its users felt the fault."""
    evidence = measures.evidence
    control = evidence.role("control")
    by_themselves: set[str] = set()
    if control is not None and (at := _fault_at(evidence, control)) is not None:
        by_themselves = {s.name for s in SIGNALS if _movement(control, s, at)[0] is not None}
    found = []
    for arm in evidence.arms:
        fault_at = _fault_at(evidence, arm)
        if not arm.arm.fault or arm.step("injected") is None or fault_at is None:
            continue
        movements = [
            Movement(spec, *_movement(arm, spec, fault_at), spec.name in by_themselves) for spec in SIGNALS
        ]
        felt_after_s, felt_by = _felt(arm.calls, fault_at, lambda call: measures.goodness.of(call).ttft_s)
        limit_s = min((limits.ttft_s for limits in measures.goodness.by_class.values()), default=math.inf)
        movements.append(_attempt_errors(arm, fault_at))
        limit = limit_s if math.isfinite(limit_s) else None
        found.append(EarlyWarning(arm.name, tuple(movements), felt_after_s, felt_by, limit))
    return tuple(found)
