"""A worker is lost: without policies calls are lost with it, with them every call is answered, in time."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize(
    "on",
    [pytest.param("local", marks=pytest.mark.cluster), pytest.param("compose", marks=pytest.mark.docker)],
)
def test_the_loss_of_a_worker_costs_no_call(on, tmp_path):
    verdict = run_experiment("worker_loss", on=on, seed=7, out=tmp_path)
    assert verdict.status == "pass", verdict.deciding
