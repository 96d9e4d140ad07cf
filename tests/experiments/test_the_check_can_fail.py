"""The check can fail: without retries the calls that awaited their first token on the lost worker are lost too."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_without_retry_the_loss_of_a_worker_costs_calls(tmp_path):
    verdict = run_experiment(
        "worker_loss", on="local", seed=7, arms=["resilient"], without=["retry"], out=tmp_path
    )
    assert verdict.status == "fail", verdict.deciding
