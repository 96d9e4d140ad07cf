"""The check can fail: without retry what awaited on the lost worker is lost, and without resume its streams are."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize("policy", ["retry", "resume"])
@pytest.mark.cluster
def test_without_a_policy_the_loss_of_a_worker_costs_calls(policy, tmp_path):
    verdict = run_experiment(
        "worker_loss",
        on="local",
        seed=7,
        arms=["resilient"],
        without=[policy],
        out=tmp_path / "run",
        share_capacity=True,
    )
    assert verdict.status == "fail", verdict.deciding
