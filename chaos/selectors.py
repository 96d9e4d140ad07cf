"""Which calls of an arm the objectives are about: named, so that a scenario can say it in one word.

Where the window lies, and why arms may be compared although the fault fires a little later in one than in another:

- In an arm with a fault the window begins at the moment at which the fault was *injected*, because what happened
  before it is not the fault's doing. In the control arm, where nothing happened, it begins at the *scheduled* offset.
  All are offsets from the arm's start, and the same ``n`` is the same arrival in all arms.
- A fault waits for its condition, so two windows may differ by some arrivals at either end. Comparisons
  (:func:`chaos.slo.compare`) resample arrivals that either arm counts, so neither arm's calls are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos.course import reverted_offset_s
from chaos.evidence import ArmEvidence, Evidence
from chaos.history import CallRecord, FaultRecord
from chaos.names import UnknownName, require
from cluster.public import replica_label

WORKER_LOSS_WINDOW_S: Final = 10.0


class SelectionError(ValueError):
    """The counted calls cannot be told from this history; the text says what is missing. Inconclusive."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The counted calls of one arm, by ``n``; offsets are seconds from the arm's start."""

    calls: tuple[CallRecord, ...]
    awaiting: frozenset[int]
    """The ``n`` of those that awaited their first token on the victim at the fault."""
    start_s: float
    end_s: float

    @property
    def window_s(self) -> float:
        return self.end_s - self.start_s


Selector = Callable[[Evidence, ArmEvidence], Selection]


def fault_offset_s(evidence: Evidence, arm: ArmEvidence) -> float:
    """Return where the window of an arm begins.

    Raises:
        SelectionError: the arm has a fault that was never injected, or nothing to count offsets from.
    """
    if not arm.arm.fault:
        return evidence.scheduled_fault_s
    injected = arm.step("injected")
    if injected is None or arm.start_at is None:
        raise SelectionError(f"arm {arm.name!r}: its fault was not injected, so nothing can be counted")
    return injected.at - arm.start_at


def _within(arm: ArmEvidence, start_s: float, end_s: float) -> set[int]:
    return {call.n for call in arm.calls if start_s <= call.offset_s < end_s}


def awaiting_requests(
    arm: ArmEvidence, injected: FaultRecord, *, streams_too: bool = False
) -> frozenset[str]:
    """Return the ids of the requests that awaited their first token on the victim when the fault struck.

    With ``streams_too`` also of those that had it: all that the victim held.

    The gateway's events decide: an attempt on the victim that had begun by ``injected``, had not ended before the
    fault began to strike, and had no first token by ``injected``. Both moments are used because ending a process
    takes a moment: a connection may be lost before the kill returns and ``injected`` is written. Where the history
    has no events of the victim, what the fault saw (``awaiting`` in its detail) decides.

    Raises:
        SelectionError: the history has neither.
    """
    since = arm.struck_at or injected.at
    victim = injected.target
    on_victim = [
        attempt
        for attempt in arm.attempts()
        if attempt.replica == victim or (victim == replica_label(attempt.replica))
    ]
    if on_victim:
        return frozenset(
            attempt.request_id
            for attempt in on_victim
            if attempt.started_at <= injected.at
            and (attempt.ended_at is None or attempt.ended_at >= since)
            and (streams_too or attempt.first_token_at is None or attempt.first_token_at > injected.at)
        )
    if "awaiting" not in injected.detail:
        raise SelectionError(
            f"arm {arm.name!r}: neither the gateway's events nor the fault say which calls awaited their "
            f"first token on {victim}"
        )
    told = [*injected.detail["awaiting"], *(injected.detail.get("streaming") or () if streams_too else ())]
    return frozenset(str(request) for request in told)


def worker_loss_window(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that awaited their first token on the victim at the fault, and those of the ten seconds after it."""
    return _around_the_loss(evidence, arm, streams_too=False)


def loss_window(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that the victim held at the fault, streams that had begun too, and those of the ten seconds after it."""
    return _around_the_loss(evidence, arm, streams_too=True)


def _around_the_loss(evidence: Evidence, arm: ArmEvidence, *, streams_too: bool) -> Selection:
    start_s = fault_offset_s(evidence, arm)
    end_s = start_s + WORKER_LOSS_WINDOW_S
    awaiting: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    if arm.arm.fault and (injected := arm.step("injected")) is not None:
        requests = awaiting_requests(arm, injected)
        awaiting = held = frozenset(call.n for call in arm.calls if call.request_id in requests)
        if streams_too:
            requests = awaiting_requests(arm, injected, streams_too=True)
            held = frozenset(call.n for call in arm.calls if call.request_id in requests)
    chosen = held | _within(arm, start_s, end_s)
    return Selection(tuple(c for c in arm.calls if c.n in chosen), awaiting, start_s, end_s)


def hold_window(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that arrive while the fault is held: from its injection for ``hold_s``, or until its revert if sooner."""
    start_s = fault_offset_s(evidence, arm)
    end_s = start_s + evidence.experiment.phases.hold_s
    reverted = arm.step("reverted") if arm.arm.fault else None
    if reverted is not None and arm.start_at is not None:
        end_s = min(end_s, reverted.at - arm.start_at)
    chosen = _within(arm, start_s, end_s)
    return Selection(tuple(c for c in arm.calls if c.n in chosen), frozenset(), start_s, end_s)


def held_and_hold(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that the victim held at the fault, streams that had begun too, and those that arrive while it is held."""
    window = hold_window(evidence, arm)
    around = loss_window(evidence, arm)
    held = {call.n for call in around.calls if call.offset_s < window.start_s}
    chosen = held | {call.n for call in window.calls}
    calls = tuple(c for c in arm.calls if c.n in chosen)
    return Selection(calls, around.awaiting, window.start_s, window.end_s)


def held_by_gateway(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that were under way at the fault, those that awaited a result too, and those that arrive during it."""
    window = hold_window(evidence, arm)
    start_s, origin = window.start_s, arm.start_at or 0.0
    struck_s = start_s if arm.struck_at is None else arm.struck_at - origin
    held = {c.n for c in arm.calls if c.offset_s < struck_s <= c.ended_at - origin}
    chosen = held | {call.n for call in window.calls}
    calls = tuple(c for c in arm.calls if c.n in chosen)
    return Selection(calls, frozenset(), start_s, window.end_s)


def after_revert(evidence: Evidence, arm: ArmEvidence) -> Selection:
    """Calls that arrive after the fault was taken back, until the arm's last."""
    start_s = reverted_offset_s(evidence, arm)
    if start_s is None:
        raise SelectionError(f"arm {arm.name!r}: its fault was not taken back, so nothing came after that")
    phases = evidence.experiment.phases
    end_s = max(start_s, evidence.scheduled_fault_s + phases.hold_s + phases.recovery_s)
    chosen = _within(arm, start_s, end_s)
    return Selection(tuple(c for c in arm.calls if c.n in chosen), frozenset(), start_s, end_s)


SELECTORS: Final[Mapping[str, Selector]] = {
    "worker_loss_window": worker_loss_window,
    "loss_window": loss_window,
    "hold_window": hold_window,
    "held_and_hold": held_and_hold,
    "held_by_gateway": held_by_gateway,
    "after_revert": after_revert,
}
Scope = tuple[str, str, float]
"""Which calls an objective is about: class (empty: all), selector (empty: the experiment's), seconds left out."""
ALL: Final[Scope] = ("", "", 0.0)


def select(evidence: Evidence, arm: ArmEvidence, scope: Scope = ALL) -> Selection:
    """Return the counted calls of an arm, as the experiment's selector or that of an objective says.

    Raises:
        SelectionError: an unknown selector, or a history from which they cannot be told.
    """
    call_class, counted, from_s = scope
    try:
        name = require("selector", counted or evidence.experiment.counted, SELECTORS)
    except UnknownName as error:
        raise SelectionError(str(error)) from error
    found = SELECTORS[name](evidence, arm)
    if not call_class and not from_s:
        return found
    since_s = found.start_s + from_s
    calls = tuple(
        call
        for call in found.calls
        if call_class in ("", call.call_class) and (not from_s or call.offset_s >= since_s)
    )
    return Selection(calls, found.awaiting & {call.n for call in calls}, since_s, found.end_s)


def meaning(name: str) -> str:
    """Return in words which calls a selector counts."""
    selector = SELECTORS.get(name)
    return (selector.__doc__ or "").split("\n", 1)[0] if selector else f"unknown selector {name!r}"
