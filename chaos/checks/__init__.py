"""The checkers: each looks at the measures of a run and says pass, fail or inconclusive about one thing.

To add one: write a function ``(Measures) -> Iterable[Check]`` in a module here and add it to :data:`CHECKERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chaos.checks import claims, evidence, faults, promises, signs, streams, surroundings
from chaos.checks.check import Check, Checker, Status, crashed, run

CHECKERS: Final[Sequence[Checker]] = (
    # what the experiment claims
    claims.fault_has_teeth,
    claims.policies_work,
    claims.control_healthy,
    signs.path_taken,
    # whether the numbers may be believed
    evidence.history_complete,
    evidence.same_arrivals,
    evidence.minimum_counted,
    evidence.objectives_measured,
    evidence.load_on_time,
    evidence.steady_state,
    evidence.calibration,
    # the fault's life
    faults.fault_injected,
    faults.fault_reverted,
    # what holds in every arm, always
    streams.stream_integrity,
    streams.streams_unaltered,
    streams.visible_failures,
    promises.effects_truthful,
    promises.jobs_accounted,
    promises.answers_of_the_tenant,
    promises.nothing_after_revocation,
    surroundings.found_by_the_runner,
)

__all__ = ["CHECKERS", "Check", "Checker", "Status", "crashed", "run"]
