"""A worker is lost: without policies calls are lost with it, with them every call is answered, in full and in time."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_the_loss_of_a_worker_costs_no_call(seed, tmp_path):
    verdict = run_experiment(
        "worker_loss", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding


@pytest.mark.docker
def test_the_loss_of_a_worker_costs_no_call_in_containers(tmp_path):
    verdict = run_experiment("worker_loss", on="compose", seed=7, out=tmp_path / "run", repeats=2)
    assert verdict.status == "pass", verdict.deciding
