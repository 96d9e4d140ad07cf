"""One replica's link gets slow: without policies a third of the calls feels it, with them it is soon left alone."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_a_slow_link_is_soon_left_alone(seed, tmp_path):
    verdict = run_experiment(
        "slow_replica", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
