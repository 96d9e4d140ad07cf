"""One arm on the time axis that all arms share: zero is the scheduled fault, the fault's time is shaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from chaos.evidence import ArmEvidence, Evidence
from chaos.measures import Measures
from chaos.report.svg import Scale, el, fixed, picture

WIDTH = 460.0
HEIGHT = 176.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 12.0, 20.0, 34.0
_PHASES = {"warm_up": "warm-up", "steady": "steady", "hold": "hold", "recovery": "recovery"}


@dataclass(frozen=True, slots=True)
class Lane:
    """An arm and where its moments lie on the shared axis, in seconds after the scheduled fault."""

    arm: ArmEvidence
    zero_at: float
    start_s: float
    end_s: float
    """The shared domain, the same in every lane."""
    fault: tuple[float, float] | None
    phases: tuple[tuple[str, float], ...]
    counted: tuple[float, float] | None

    def x(self, at: float) -> float:
        """Return a moment in seconds after the scheduled fault."""
        return at - self.zero_at

    @property
    def scale(self) -> Scale:
        return fixed(self.start_s, self.end_s, LEFT, WIDTH - RIGHT)


def _ends(arm: ArmEvidence) -> float:
    ends = [phase.at for phase in arm.phases] + [signal.at for signal in arm.signals]
    return max([*ends, *(call.ended_at for call in arm.calls)], default=0.0)


def _fault(arm: ArmEvidence, zero_at: float, until: float) -> tuple[float, float] | None:
    struck_at, reverted = arm.struck_at, arm.step("reverted")
    if struck_at is None:
        return None
    return struck_at - zero_at, (reverted.at if reverted else until) - zero_at


def lanes(measures: Measures) -> tuple[Lane, ...]:
    """Return one lane an arm, all with the same domain. An arm without a start is left out."""
    evidence: Evidence = measures.evidence
    placed = [(m, m.evidence.start_at) for m in measures.arms]
    known = [(m, start + evidence.scheduled_fault_s) for m, start in placed if start is not None]
    if not known:
        return ()
    first = -evidence.scheduled_fault_s
    last = max([1.0, *(_ends(m.evidence) - zero for m, zero in known)])
    return tuple(
        Lane(
            arm=m.evidence,
            zero_at=zero,
            start_s=first,
            end_s=last,
            fault=_fault(m.evidence, zero, zero + last),
            phases=tuple((p.phase, p.at - zero) for p in m.evidence.phases),
            counted=(m.selection.start_s + first, m.selection.end_s + first) if m.selection else None,
        )
        for m, zero in known
    )


def phase_strip(lane: Lane) -> Markup:
    """Return the strip that names the phases of an arm."""
    scale, drawn, height = lane.scale, [], 26.0
    for (name, start), (_, end) in pairwise([*lane.phases, ("", lane.end_s)]):
        left, right = scale.at(max(start, lane.start_s)), scale.at(min(end, lane.end_s))
        if name not in _PHASES or right <= left:
            continue
        title = el("title", f"{_PHASES[name]}: {start:.1f} to {end:.1f} s")
        drawn.append(
            el(
                "rect",
                title,
                x=left,
                y=4,
                width=max(right - left - 1, 0.5),
                height=18,
                class_=f"phase {name}",
            )
        )
        if right - left > 9 * len(_PHASES[name]) * 0.72:
            drawn.append(el("text", _PHASES[name], x=(left + right) / 2, y=17, class_="phase-name"))
    said = ", ".join(f"{_PHASES[n]} from {s:.1f} s" for n, s in lane.phases if n in _PHASES)
    return picture(WIDTH, height, f"Phases of arm {lane.arm.name}: {said}", drawn)


def chart(
    lane: Lane, y: Scale, unit: str, label: str, marks: Sequence[Markup], behind: Iterable[Markup] = ()
) -> Markup:
    """Return a framed chart: axes with units, the fault shaded, phases marked, then ``marks``.

    Args:
        y: vertical scale from HEIGHT - BOTTOM up to TOP.
        unit: what the vertical axis counts, with its unit.
        label: the chart in words.
        behind: drawn below the marks and above the shading.
    """
    x, bottom = lane.scale, HEIGHT - BOTTOM
    drawn: list[Markup] = []
    if lane.fault:
        left, right = (x.at(min(max(edge, lane.start_s), lane.end_s)) for edge in lane.fault)
        title = el("title", f"fault in force: {lane.fault[0]:.2f} to {lane.fault[1]:.2f} s")
        drawn.append(
            el("rect", title, x=left, y=TOP, width=max(right - left, 1), height=bottom - TOP, class_="fault")
        )
        drawn.append(el("line", x1=left, x2=left, y1=TOP, y2=bottom, class_="fault-edge"))
    for value, text in y.ticks:
        drawn.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y.at(value), y2=y.at(value), class_="grid"))
        drawn.append(el("text", text, x=LEFT - 6, y=y.at(value) + 3.5, class_="tick y"))
    for name, start in lane.phases:
        if name in ("steady", "revert", "recovery", "end") and lane.start_s < start < lane.end_s:
            drawn.append(el("line", x1=x.at(start), x2=x.at(start), y1=TOP, y2=bottom, class_="phase-edge"))
    if not lane.fault:
        drawn.append(el("line", x1=x.at(0), x2=x.at(0), y1=TOP, y2=bottom, class_="no-fault"))
    for value, text in x.ticks:
        drawn.append(el("line", x1=x.at(value), x2=x.at(value), y1=bottom, y2=bottom + 4, class_="axis"))
        drawn.append(el("text", text, x=x.at(value), y=bottom + 15, class_="tick x"))
    drawn.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
    drawn.append(el("text", unit, x=4, y=11, class_="unit"))
    drawn.append(el("text", "s after the scheduled fault", x=WIDTH - RIGHT, y=HEIGHT - 4, class_="unit end"))
    return picture(WIDTH, HEIGHT, label, [*drawn, *behind, *marks])
