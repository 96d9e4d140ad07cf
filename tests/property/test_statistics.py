"""Statistics: what holds for every sample."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chaos import slo
from chaos.history import CallRecord

CALL = CallRecord(
    arm="a",
    n=0,
    request_id="",
    offset_s=0.0,
    scheduled_at=100.0,
    sent_at=100.0,
    ended_at=101.0,
    stream=True,
    prompt_sha="",
    prompt_tokens=1,
    max_tokens=1,
    outcome="ok",
    status=200,
)
values = st.lists(st.floats(0, 1e6, allow_nan=False) | st.just(math.inf), min_size=1, max_size=60)
shares = st.floats(0.001, 1.0)
outcomes = st.lists(st.sampled_from(["ok", "degraded", "failed", "late", "refused"]), min_size=1, max_size=60)


no_deadline = settings(deadline=None)
"""A deadline would assert an absolute time."""


def made(kinds: list[str]) -> list[CallRecord]:
    return [replace(CALL, n=n, outcome=kind) for n, kind in enumerate(kinds)]  # type: ignore[arg-type]


@no_deadline
@given(values, shares)
def test_a_percentile_is_a_value_of_the_sample_and_covers_its_share(
    sample: list[float], share: float
) -> None:
    found = slo.percentile(sample, share)
    assert found in sample
    assert sum(v <= found for v in sample) >= share * len(sample) - 1e-6
    assert sum(v < found for v in sample) < share * len(sample) + 1e-6


@no_deadline
@given(values, shares, shares)
def test_percentiles_grow_with_their_share(sample: list[float], a: float, b: float) -> None:
    assert slo.percentile(sample, min(a, b)) <= slo.percentile(sample, max(a, b))


@no_deadline
@given(values, shares, st.randoms(use_true_random=False))
def test_a_percentile_does_not_depend_on_order(sample: list[float], share: float, chance: object) -> None:
    shuffled = list(sample)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert slo.percentile(shuffled, share) == slo.percentile(sample, share)


@no_deadline
@given(outcomes)
def test_the_interval_of_a_rate_is_inside_0_to_1_and_holds_the_rate(kinds: list[str]) -> None:
    found = slo.estimate(slo.SUCCESS_RATE, made(kinds), "s", 200)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.n == len(kinds)


@no_deadline
@given(outcomes)
def test_a_perfect_or_hopeless_rate_still_has_a_width(kinds: list[str]) -> None:
    found = slo.estimate(slo.SUCCESS_RATE, made(kinds), "s", 100)
    if found.value in (0.0, 1.0):
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.high


@no_deadline
@given(outcomes, st.text(max_size=5))
def test_an_arm_does_not_differ_from_itself(kinds: list[str], seed: str) -> None:
    calls = made(kinds)
    found = slo.compare(slo.SUCCESS_RATE, calls, calls, slo.difference, seed, 50)
    assert (found.low, found.value, found.high) == (0, 0, 0)


@no_deadline
@given(outcomes, outcomes)
def test_a_comparison_turned_round_has_the_opposite_value(a: list[str], b: list[str]) -> None:
    there = slo.compare(slo.SUCCESS_RATE, made(a), made(b), slo.difference, "s", 20)
    back = slo.compare(slo.SUCCESS_RATE, made(b), made(a), slo.difference, "s", 20)
    assert there.value is not None
    assert back.value is not None
    assert math.isclose(there.value, -back.value, abs_tol=1e-12)


@no_deadline
@given(outcomes)
def test_failing_a_call_never_improves_a_latency(kinds: list[str]) -> None:
    calls = [replace(c, first_token_at=100.5) if slo.answered(c) else c for c in made(kinds)]
    worse = [replace(c, outcome="failed", first_token_at=None) if slo.answered(c) else c for c in calls[:1]]
    for name in ("ttft_p95", "e2e_p95"):
        before, after = slo.STATISTICS[name].of(calls), slo.STATISTICS[name].of([*worse, *calls[1:]])
        if before is not None:
            assert after is not None
            assert after >= before
