"""The gateway is killed: who repeats with the same key is answered, every job is done, nothing happens twice."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize(
    "on",
    [pytest.param("local", marks=pytest.mark.cluster), pytest.param("compose", marks=pytest.mark.docker)],
)
def test_what_was_under_way_when_the_gateway_died_is_answered(on, tmp_path):
    verdict = run_experiment("gateway_crash", on=on, seed=7, out=tmp_path / "run", repeats=2)
    assert verdict.status == "pass", verdict.deciding
