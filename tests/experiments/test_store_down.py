"""The store cannot be used: everything is refused, and whoever comes back with the same key is answered."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize(
    "on",
    [pytest.param("local", marks=pytest.mark.cluster), pytest.param("compose", marks=pytest.mark.docker)],
)
def test_nothing_is_half_done_while_the_store_is_down(on, tmp_path):
    verdict = run_experiment("store_down", on=on, seed=7, out=tmp_path / "run", repeats=2)
    assert verdict.status == "pass", verdict.deciding
