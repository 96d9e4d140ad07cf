"""Long prompts press the cache: without policies short calls wait behind them, with them they do not."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_long_prompts_do_not_hold_up_short_calls(seed, tmp_path):
    verdict = run_experiment(
        "long_context", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
