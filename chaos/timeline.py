"""What happened to the victim of a fault: scheduled, struck, noticed, replaced. From the history alone."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.evidence import ArmEvidence, Evidence
from cluster.public import replica_label


@dataclass(frozen=True, slots=True)
class Timeline:
    """One arm's fault. ``*_s`` are seconds after it began to strike, the two offsets seconds after the arm's start."""

    arm: str
    kind: str
    target: str
    scheduled_offset_s: float
    struck_offset_s: float
    struck_at: float
    took_s: float
    """From the first to the last moment of the injection."""
    awaiting: int | None
    """Calls that awaited their first token on the target, as the fault saw it; None when it did not look."""
    streaming: int | None
    verified_s: float | None
    detected_s: float | None
    """Until the target was out of the gateway's rotation."""
    detected_by: str
    """The gateway's event that said so."""
    replaced_s: float | None
    """Until another incarnation of the same label was in rotation."""
    replaced_by: str
    first_token_s: float | None
    """Until that incarnation gave its first token."""
    reverted_s: float | None


def _held(detail: object) -> int | None:
    return len(detail) if isinstance(detail, list | tuple) else None


def timeline(evidence: Evidence, arm: ArmEvidence) -> Timeline | None:
    """Return the fault's timeline in an arm, or None when none was injected."""
    injected, start_at = arm.step("injected"), arm.start_at
    if injected is None or start_at is None:
        return None
    at, target = arm.struck_at or injected.at, injected.target
    scheduled = arm.step("scheduled")

    def after(moment: float | None) -> float | None:
        return None if moment is None else max(0.0, moment - at)

    def names(replica: object) -> bool:
        return str(replica) == target

    gone = next(
        (
            e
            for e in arm.events
            if e.at >= at
            and e.event in ("ejected", "upstream_removed")
            and names(e.detail.get("replica", ""))
        ),
        None,
    )
    label = replica_label(target)
    new = next(
        (
            e
            for e in arm.events
            if e.event == "upstream_added"
            and e.at >= at
            and replica_label(str(e.detail.get("replica", ""))) == label
            and not names(e.detail.get("replica", ""))
        ),
        None,
    )
    new_link = str(new.detail.get("replica", "")) if new else ""
    tokens = [
        a.first_token_at for a in arm.attempts() if new_link and a.replica == new_link and a.first_token_at
    ]
    verified, reverted = arm.step("verified"), arm.step("reverted")
    return Timeline(
        arm=arm.name,
        kind=injected.kind,
        target=target,
        scheduled_offset_s=scheduled.at - start_at if scheduled else evidence.scheduled_fault_s,
        struck_offset_s=at - start_at,
        struck_at=at,
        took_s=injected.at - at,
        awaiting=_held(injected.detail.get("awaiting")),
        streaming=_held(injected.detail.get("streaming")),
        verified_s=after(verified.at if verified else None),
        detected_s=after(gone.at if gone else None),
        detected_by=gone.event if gone else "",
        replaced_s=after(new.at if new else None),
        replaced_by=new_link,
        first_token_s=after(min(tokens, default=None)),
        reverted_s=after(reverted.at if reverted else None),
    )
