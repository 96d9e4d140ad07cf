"""Unknown names are answered with the nearest."""

from __future__ import annotations

import pytest

from chaos.names import UnknownName, nearest, require
from chaos.scenarios import scenario
from chaos.scenarios.worker_loss import WORKER_LOSS
from chaos.substrates import substrate
from chaos.tailor import tailored


@pytest.mark.parametrize(
    ("given", "offered"),
    [("worker_los", "worker_loss"), ("workerloss", "worker_loss"), ("slow", "slow_tool")],
)
def test_a_typo_in_a_scenario_is_answered_with_the_nearest(given: str, offered: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown scenario '{given}'.*'{offered}'"):
        scenario(given)


def test_where_nothing_is_near_all_are_named() -> None:
    with pytest.raises(UnknownName, match="known are: local, compose"):
        substrate("zzzz")
    assert nearest("zzzz", ["local"]) == []
    assert require("fault", "noop", ["noop"]) == "noop"


def test_without_a_policy_only_the_resilient_arm_changes() -> None:
    changed = tailored(WORKER_LOSS, without=["retry", "retry"])
    assert [(arm.name, arm.without) for arm in changed.arms] == [
        ("control", ()),
        ("naive", ()),
        ("resilient", ("retry",)),
    ]
    assert tailored(WORKER_LOSS) == WORKER_LOSS


def test_arms_keep_the_experiments_order() -> None:
    assert [arm.name for arm in tailored(WORKER_LOSS, arms=["resilient", "control"]).arms] == [
        "control",
        "resilient",
    ]


def test_unknown_arms_and_policies_and_a_policy_without_its_arm_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown arm 'resilent': did you mean 'resilient'"):
        tailored(WORKER_LOSS, arms=["resilent"])
    with pytest.raises(UnknownName, match="unknown policy 'retri': did you mean 'retry'"):
        tailored(WORKER_LOSS, without=["retri"])
    with pytest.raises(UnknownName, match="needs an arm with the fault and the policies"):
        tailored(WORKER_LOSS, arms=["control", "naive"], without=["retry"])
