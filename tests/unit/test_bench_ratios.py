"""The bench compares arms round by round, and says that a goal is missed when it is."""

from __future__ import annotations

import pytest

from tests.bench.ratios import Goal, Sample, ratios, table, verdict

FASTER = Goal("throughput", lambda one: one.tokens_per_s, "ours", "direct", 0.97, at_least=True)
SOONER = Goal("TTFT", lambda one: one.ttft_p50_s, "ours", "direct", 1.1)


def sample(arm: str, tokens: float, ttft_s: float = 0.1, **more: float) -> Sample:
    return Sample(arm, 10.0, tokens, 50, (ttft_s, ttft_s, 9.0), **more)  # type: ignore[arg-type]


def test_rounds_are_paired_so_that_a_slow_machine_slows_both() -> None:
    samples = [sample("direct", 1000), sample("ours", 990), sample("direct", 500), sample("ours", 495)]
    assert ratios(samples, FASTER.figure, "ours", "direct") == pytest.approx([0.99, 0.99])
    assert verdict(samples, FASTER)[0]


def test_one_outlier_among_the_rounds_decides_nothing() -> None:
    ours = [sample("ours", tokens) for tokens in (990, 600, 980)]
    assert verdict([*ours, *(sample("direct", 1000) for _ in ours)], FASTER)[0]


@pytest.mark.parametrize(
    ("goal", "tokens", "ttft_s", "met"),
    [
        (FASTER, 970, 0.1, True),
        (FASTER, 969, 0.1, False),
        (SOONER, 1000, 0.109, True),
        (SOONER, 1000, 0.112, False),
    ],
)
def test_a_goal_is_met_up_to_its_bound(goal: Goal, tokens: float, ttft_s: float, met: bool) -> None:
    found, said = verdict([sample("direct", 1000), sample("ours", tokens, ttft_s)], goal)
    assert found is met
    assert said.startswith("goal met" if met else "goal missed")


def test_an_arm_that_refuses_calls_meets_nothing_however_quick_it_is() -> None:
    met, said = verdict([sample("direct", 1000), sample("ours", 1000, unwhole=2)], FASTER)
    assert not met
    assert "2 calls were not answered whole" in said


def test_what_was_not_measured_is_not_met() -> None:
    cpu = Goal("CPU", lambda one: one.cpu_us_per_token, "ours", "direct", 2.0)
    assert not verdict([sample("direct", 1000), sample("ours", 1000, cpu_s=1.0)], cpu)[0]


def test_arms_that_did_not_run_equally_often_are_refused() -> None:
    with pytest.raises(ValueError, match="ours ran 1 times and direct 0 times"):
        ratios([sample("ours", 1)], FASTER.figure, "ours", "direct")


def test_the_table_has_a_line_an_arm_with_its_ratio_and_what_its_process_took() -> None:
    head, direct, ours = table(
        [sample("direct", 1000), sample("ours", 900, 0.12, cpu_s=0.09, idle=0.25)], "direct"
    )
    assert head.split()[0] == "arm"
    assert direct.split() == ["direct", "100.0", "1.000", "100.0", "ms", "1.000", "-", "-", "0", "-"]
    assert ours.split() == [
        "ours",
        "90.0",
        "0.900",
        "120.0",
        "ms",
        "1.200",
        "100",
        "us",
        "1800",
        "us",
        "0",
        "25",
        "%",
    ]
