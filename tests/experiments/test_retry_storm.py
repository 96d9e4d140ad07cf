"""A short trigger: eager retries keep the service down after it, with the policies it is back within seconds."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_the_service_is_back_soon_after_the_trigger(seed, tmp_path):
    verdict = run_experiment(
        "retry_storm", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
