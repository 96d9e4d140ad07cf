"""The same questions of two tenants in a burst: the cache carries them, and gives nobody what is not theirs."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.cluster
def test_the_cache_carries_a_burst_and_keeps_tenants_apart(seed, tmp_path):
    verdict = run_experiment(
        "cache_isolation", on="local", seed=seed, out=tmp_path / "run", repeats=2, share_capacity=True
    )
    assert verdict.status == "pass", verdict.deciding
