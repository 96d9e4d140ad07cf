"""A tool acts and its answers are lost: with new keys it acts twice, with the same key once, and everybody is told."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize(
    "on",
    [pytest.param("local", marks=pytest.mark.cluster), pytest.param("compose", marks=pytest.mark.docker)],
)
def test_a_transfer_happens_once_although_its_answer_is_lost(on, tmp_path):
    verdict = run_experiment("tool_effect_answer_lost", on=on, seed=7, out=tmp_path / "run", repeats=2)
    assert verdict.status == "pass", verdict.deciding
