"""An engine freezes behind a green health check: without policies its callers wait, with them they notice little."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_a_frozen_engine_costs_no_call(seed, tmp_path):
    verdict = run_experiment(
        "frozen_replica", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding


@pytest.mark.docker
def test_a_frozen_engine_costs_no_call_in_containers(tmp_path):
    verdict = run_experiment("frozen_replica", on="compose", seed=7, out=tmp_path / "run", repeats=2)
    assert verdict.status == "pass", verdict.deciding
