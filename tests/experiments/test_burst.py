"""Three times the capacity arrives: without policies nothing is in time, with them what matters is."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_a_burst_does_not_reach_critical_calls(seed, tmp_path):
    verdict = run_experiment(
        "burst", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
