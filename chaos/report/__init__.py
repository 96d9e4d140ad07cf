"""The report of a run: a folder with everything, made from the history alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from chaos import slo
from chaos.experiment import Experiment
from chaos.history import read
from chaos.report.data import to_json
from chaos.report.junit import junit
from chaos.report.markdown import markdown
from chaos.report.page import html
from chaos.report.story import conclusion
from chaos.verdict import Verdict, judge

__all__ = ["conclusion", "html", "junit", "markdown", "to_json", "write"]


def write(
    history_path: Path, folder: Path, experiment: Experiment | None = None, resamples: int = slo.RESAMPLES
) -> Verdict:
    """Judge a history and write ``verdict.json``, ``report.md``, ``junit.xml`` and ``report.html`` into a folder.

    The history itself is copied beside them when it lies elsewhere. Files of an earlier report are replaced.

    Args:
        experiment: judge by this one instead of the one in the history, e.g. with new objectives.
        resamples: bootstrap resamples behind each interval.

    Raises:
        HistoryError: a line in the middle of the history is not a record.
        OSError: the history cannot be read or the folder not written.
    """
    verdict = judge(read(history_path), experiment, resamples)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "history.jsonl"
    if history_path.resolve() != kept.resolve():
        shutil.copyfile(history_path, kept)
    data = json.dumps(to_json(verdict), indent=2, ensure_ascii=False, allow_nan=False)
    # The verdict is written first: should a page fail to be drawn, what was found out is not lost.
    (folder / "verdict.json").write_text(data + "\n", encoding="utf-8")
    (folder / "junit.xml").write_bytes(junit(verdict))
    (folder / "report.md").write_text(markdown(verdict), encoding="utf-8")
    (folder / "report.html").write_text(html(verdict), encoding="utf-8")
    return verdict
