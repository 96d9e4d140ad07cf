"""Whether the fault hurt in the way that the scenario is about, and not by accident in another."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.checks.check import Check
from chaos.early_warning import SIGNALS
from chaos.evidence import ArmEvidence
from chaos.experiment import Sign
from chaos.measures import Measures
from chaos.text import number


def rise(arm: ArmEvidence, signal: str) -> float | None:
    """Return how far a signal rose above what it was at the fault, until the arm's last call ended; None if unknown.

    Not until the revert: what the fault has brought in is worked off after it.
    """
    struck_at = arm.struck_at
    if struck_at is None or not arm.calls:
        return None
    until = max(call.ended_at for call in arm.calls)
    known = [(r.at, value) for r in arm.signals if (value := getattr(r, signal, None)) is not None]
    before = [value for at, value in known if at <= struck_at]
    during = [value for at, value in known if struck_at < at <= until]
    return max(during) - before[-1] if before and during else None


def path_taken(measures: Measures) -> Iterator[Check]:
    """Without the policies the fault moves the signals that the scenario names, as far as it names."""
    signs = measures.evidence.experiment.signs
    naive = measures.evidence.role("naive")
    if not signs:
        return
    if naive is None:
        yield Check("path_taken", "inconclusive", "no arm was run that shows how the fault hurts")
        return
    for sign in signs:
        yield _seen(sign, rise(naive, sign.signal), naive.name)


def _seen(sign: Sign, rose: float | None, arm: str) -> Check:
    unit = next((spec.unit for spec in SIGNALS if spec.name == sign.signal), "")
    wanted = number(sign.rise, unit)
    name = f"path_taken: {sign.signal}"
    if rose is None:
        return Check(name, "inconclusive", f"{sign.signal} was not sampled around the fault", arm)
    detail = {"signal": sign.signal, "rise": rose, "wanted": sign.rise}
    if rose >= sign.rise:
        return Check(
            name, "pass", f"{sign.signal} rose by {number(rose, unit)}, {wanted} wanted", arm, detail
        )
    summary = (
        f"{sign.signal} rose by {number(rose, unit)} only, {wanted} are needed: the fault did not hurt in the way that "
        f"this scenario is about"
    )
    return Check(name, "inconclusive", summary, arm, detail)
