"""A tool is slow: without policies every call waits for it, with them the tool's deadline bounds the wait."""

import pytest

from chaos.testing import run_experiment


@pytest.mark.parametrize(
    "on",
    [pytest.param("local", marks=pytest.mark.cluster), pytest.param("compose", marks=pytest.mark.docker)],
)
def test_a_slow_tool_delays_a_call_by_its_deadline_at_most(on, tmp_path):
    verdict = run_experiment("slow_tool", on=on, seed=7, out=tmp_path)
    assert verdict.status == "pass", verdict.deciding
