"""A fault's life: injected, proven from outside, reverted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chaos.checks.check import Check
from chaos.measures import Measures
from chaos.text import number


def _named(faults: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} on {target}" for kind, target in sorted(faults))


def fault_injected(measures: Measures) -> Iterator[Check]:
    """Each arm with a fault had it, with proof from outside; the control arm had none."""
    for arm in measures.evidence.arms:
        injected, verified = arm.step("injected"), arm.step("verified")
        missing = arm.reached("scheduled") - arm.reached("injected")
        unproven = arm.reached("injected") - arm.reached("verified")
        if not arm.arm.fault:
            if injected is not None:
                summary = f"{injected.kind} was injected into an arm that must have no fault"
                yield Check("fault_injected", "fail", summary, arm.name)
        elif injected is None:
            why = "its condition never held" if arm.step("scheduled") else "nothing was scheduled"
            yield Check("fault_injected", "inconclusive", f"the fault was not injected: {why}", arm.name)
        elif missing:
            summary = f"only a part of the faults was injected: not {_named(missing)}"
            yield Check("fault_injected", "inconclusive", summary, arm.name)
        elif verified is None or verified.detail.get("ok") is False or unproven:
            what = _named(unproven) if unproven else f"{injected.kind} on {injected.target}"
            summary = f"{what}: nothing shows that it took effect"
            yield Check("fault_injected", "inconclusive", summary, arm.name, dict(injected.detail))
        else:
            took = number(max(verified.at - injected.at, 0.0), "s")
            every = [r for r in arm.faults if r.step == "injected"]
            what = f"{injected.kind} on {', '.join(r.target for r in every)}"
            summary = f"{what}, verified from outside after {took}"
            yield Check("fault_injected", "pass", summary, arm.name)


def fault_reverted(measures: Measures) -> Iterator[Check]:
    """What was injected was reverted."""
    for arm in measures.evidence.arms:
        injected, reverted = arm.step("injected"), arm.step("reverted")
        if injected is None:
            continue
        left = arm.reached("injected") - arm.reached("reverted")
        name = _named(left) if left else f"{injected.kind} on {injected.target}"
        if reverted is not None and reverted.detail.get("ok") is not False and not left:
            after = number(max(reverted.at - injected.at, 0.0), "s")
            yield Check("fault_reverted", "pass", f"{name} was reverted {after} after it", arm.name)
        elif measures.evidence.end is None:
            summary = f"{name}: the history was cut off before its revert"
            yield Check("fault_reverted", "inconclusive", summary, arm.name)
        else:
            yield Check("fault_reverted", "fail", f"{name} was never reverted", arm.name)
