"""The verdict of a run: every check, every number that decided, and one word with an exit code.

``judge`` is a pure function of the history, so an old history can be judged again, also by other objectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from chaos import checks, slo
from chaos.checks.check import Check, Status, worst
from chaos.early_warning import EarlyWarning, warnings
from chaos.evidence import Evidence, EvidenceError, sort
from chaos.experiment import Experiment
from chaos.history import Record, RunRecord
from chaos.measures import Measures, measure
from chaos.timeline import Timeline, timeline

SCHEMA: Final = "brownout.verdict/1"
EXIT_CODES: Final[Mapping[Status, int]] = {"pass": 0, "fail": 1, "inconclusive": 2}
EXIT_COULD_NOT_RUN: Final = 3
EXIT_USAGE: Final = 4


_CONSEQUENCES: Final = ("fault_has_teeth", "policies_work", "minimum_counted", "objectives_measured")


def _is_consequence(check: Check) -> bool:
    return check.status == "inconclusive" and check.name.split(":", 1)[0] in _CONSEQUENCES


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of judging one history."""

    status: Status
    checks: tuple[Check, ...]
    run: RunRecord | None
    measures: Measures | None
    """None when the history does not even say which experiment it is of."""
    timelines: tuple[Timeline, ...] = ()
    early_warnings: tuple[EarlyWarning, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def evidence(self) -> Evidence | None:
        return self.measures.evidence if self.measures else None

    def of_status(self, status: Status) -> tuple[Check, ...]:
        """Return the checks of that status."""
        return tuple(check for check in self.checks if check.status == status)

    @property
    def deciding(self) -> tuple[Check, ...]:
        """Return the checks that made the verdict what it is, causes before consequences; none for a pass.

        What is claimed could often not be shown *because* the fault did not strike or the machine was not fit.
        """
        if self.status == "pass":
            return ()
        return tuple(sorted(self.of_status(self.status), key=_is_consequence))


def judge(
    records: Iterable[Record], experiment: Experiment | None = None, resamples: int = slo.RESAMPLES
) -> Verdict:
    """Judge a history. The same history gives the same verdict, to the last digit.

    Args:
        records: as :func:`chaos.history.read` yields them; read to the end.
        experiment: judge by this one instead of the one in the history, e.g. with new objectives.
        resamples: bootstrap resamples behind each interval.

    Never raises for what a history says or lacks; that is inconclusive.

    Raises:
        HistoryError: from ``records``, when a line is not a record.
    """
    every = list(records)
    run = next((record for record in every if isinstance(record, RunRecord)), None)
    try:
        measures = measure(sort(every, experiment), resamples)
    except EvidenceError as error:
        return Verdict("inconclusive", (Check("history_complete", "inconclusive", str(error)),), run, None)
    except Exception as error:
        return Verdict("inconclusive", (checks.crashed("measures", error),), run, None)
    found = [check for checker in checks.CHECKERS for check in checks.run(checker, measures)]
    evidence = measures.evidence
    timelines: tuple[Timeline, ...] = ()
    early: tuple[EarlyWarning, ...] = ()
    try:
        timelines = tuple(t for arm in evidence.arms if (t := timeline(evidence, arm)) is not None)
        early = warnings(measures)
    except Exception as error:
        found.append(checks.crashed("timelines", error))
    status = worst(check.status for check in found)
    return Verdict(status, tuple(found), run, measures, timelines, early)
