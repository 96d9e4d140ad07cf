"""Twice the capacity of summaries: chat does not feel it, and each that was put off is written."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_summaries_are_put_off_and_written_later_and_none_is_lost(seed, tmp_path):
    verdict = run_experiment(
        "deferred_burst", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
