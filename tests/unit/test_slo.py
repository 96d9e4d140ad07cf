"""Statistics: what a percentile is, who takes part in a latency, and what an interval is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from chaos import slo
from chaos.goodness import Limits
from chaos.history import CallRecord

OK = CallRecord(
    arm="a",
    n=0,
    request_id="a-0",
    offset_s=1.0,
    scheduled_at=101.0,
    sent_at=101.5,
    ended_at=103.0,
    stream=True,
    prompt_sha="p",
    prompt_tokens=10,
    max_tokens=3,
    outcome="ok",
    status=200,
    first_token_at=102.0,
    token_at=[102.0, 102.25, 103.0],
    output_tokens=3,
    finish_reason="length",
    done=True,
)
FAILED = replace(OK, outcome="failed", first_token_at=None, token_at=[], error_type="upstream_lost")
REFUSED = replace(OK, outcome="refused", status=503, first_token_at=None, token_at=[])


def calls(outcomes: str) -> list[CallRecord]:
    """One call a letter: ``o`` answered, ``f`` failed, ``r`` refused."""
    kinds = {"o": OK, "f": FAILED, "r": REFUSED}
    return [replace(kinds[letter], n=n) for n, letter in enumerate(outcomes)]


def after(ttfts: list[float]) -> list[CallRecord]:
    """One answered stream a TTFT."""
    return [replace(OK, n=n, first_token_at=OK.scheduled_at + t) for n, t in enumerate(ttfts)]


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [slo.percentile(values, p) for p in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15, 20, 20, 35, 50]


def test_a_percentile_is_not_moved_by_binary_rounding() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [slo.percentile(values, p / 100) for p in range(1, 101)] == values


def test_a_percentile_stays_defined_with_infinite_values() -> None:
    assert slo.percentile([1.0, math.inf, 2.0, math.inf], 0.5) == 2.0
    assert slo.percentile([1.0, math.inf, 2.0, math.inf], 0.95) == math.inf


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_a_percentile_of_nothing_or_outside_its_range_is_an_error(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        slo.percentile(values, share)


def test_latencies_count_from_the_scheduled_send_and_not_from_the_real_one() -> None:
    assert slo.ttft_s(OK) == 1.0
    assert slo.e2e_s(OK) == 2.0
    assert slo.gaps_s(OK) == (0.25, 0.75)


def test_a_stream_that_never_got_a_token_counts_as_never_and_a_refused_one_not_at_all() -> None:
    assert slo.ttft_s(FAILED) == math.inf
    assert slo.e2e_s(FAILED) == math.inf
    assert slo.ttft_s(REFUSED) is None
    assert slo.e2e_s(REFUSED) is None


def test_a_call_without_a_stream_has_no_first_token_to_see() -> None:
    assert slo.ttft_s(replace(OK, stream=False, first_token_at=None, token_at=[])) is None


def test_a_cut_stream_keeps_its_ttft_and_has_no_end() -> None:
    cut = replace(OK, outcome="failed")
    assert slo.ttft_s(cut) == 1.0
    assert slo.e2e_s(cut) == math.inf


def test_the_success_rate_counts_refused_late_and_failed_as_not_answered_and_degraded_as_answered() -> None:
    every = [replace(OK, outcome=o) for o in ("ok", "degraded", "failed", "late", "refused")]
    assert slo.SUCCESS_RATE.of(every) == pytest.approx(2 / 5)


def test_goodput_counts_only_calls_within_the_limits() -> None:
    fast_and_slow = after([0.1, 0.2, 3.0])
    assert slo.goodput(10.0).of(fast_and_slow) == pytest.approx(0.3)
    assert slo.goodput(10.0, Limits(ttft_s=1.0).good).of(fast_and_slow) == pytest.approx(0.2)
    assert slo.goodput(10.0, Limits(e2e_s=1.0).good).of(fast_and_slow) == 0.0
    with pytest.raises(ValueError, match="window"):
        slo.goodput(0.0)


def test_nothing_measured_is_unknown_and_never_zero() -> None:
    nothing = slo.estimate(slo.STATISTICS["ttft_p95"], calls("rr"), "s", 50)
    assert nothing.value is None
    assert not nothing.known
    assert slo.estimate(slo.SUCCESS_RATE, [], "s", 50).value is None


def test_the_interval_of_a_rate_holds_it_and_repeats_with_the_seed() -> None:
    some = calls("o" * 90 + "f" * 10)
    first = slo.estimate(slo.SUCCESS_RATE, some, "seed", 500)
    assert first == slo.estimate(slo.SUCCESS_RATE, some, "seed", 500)
    assert first != slo.estimate(slo.SUCCESS_RATE, some, "another", 500)
    assert first.low is not None
    assert first.high is not None
    assert 0.8 < first.low < 0.9 < first.high < 1.0
    assert first.method == "bootstrap"


def test_a_perfect_rate_is_not_certain_but_gets_the_exact_interval() -> None:
    perfect = slo.estimate(slo.SUCCESS_RATE, calls("o" * 100), "s", 50)
    assert perfect.method == "exact"
    assert perfect.low == pytest.approx(0.025 ** (1 / 100))
    assert perfect.high == 1.0
    hopeless = slo.estimate(slo.SUCCESS_RATE, calls("f" * 100), "s", 50)
    assert (hopeless.low, hopeless.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100)))


def test_bootstrap_resamples_calls_and_not_the_gaps_inside_them() -> None:
    # Ten calls, one of them slow in all of its thousand gaps: the p99 hangs on whether that one call is drawn.
    def with_gaps(n: int, gap: float) -> CallRecord:
        return replace(OK, n=n, token_at=[100.0 + i * gap for i in range(1001)])

    some = [with_gaps(n, 0.01) for n in range(9)] + [with_gaps(9, 1.0)]
    found = slo.estimate(slo.STATISTICS["itl_p99"], some, "s", 500)
    assert found.low == pytest.approx(0.01)
    assert found.high == pytest.approx(1.0)


def test_a_comparison_is_the_difference_of_the_two_arms_own_numbers() -> None:
    a, b = calls("o" * 100), calls("o" * 90 + "f" * 10)
    found = slo.compare(slo.SUCCESS_RATE, a, b, slo.difference, "s", 500)
    assert found.value == pytest.approx(0.1)
    assert found.low is not None
    assert found.low > 0
    assert found.unit == "points"
    assert found.n == 100


def test_a_difference_of_one_call_is_not_significant() -> None:
    found = slo.compare(slo.SUCCESS_RATE, calls("o" * 100), calls("o" * 99 + "f"), slo.difference, "s", 500)
    assert found.low is not None
    assert found.low <= 0


def test_pairing_takes_out_what_both_arms_share() -> None:
    # Half the arrivals are slow in both arms, and b is always 1 s slower: every resample shows close to 1 s.
    shared = [0.1 if n % 2 else 9.0 for n in range(200)]
    a, b = after(shared), after([value + 1 for value in shared])
    paired = slo.compare(slo.STATISTICS["ttft_p95"], b, a, slo.difference, "s", 300)
    assert (paired.low, paired.value, paired.high) == (
        pytest.approx(1.0),
        pytest.approx(1.0),
        pytest.approx(1.0),
    )


def test_a_call_that_only_one_arm_counts_is_kept_in_that_arm() -> None:
    a = calls("oo")
    b = [replace(FAILED, n=7), replace(OK, n=0)]
    found = slo.compare(slo.SUCCESS_RATE, a, b, slo.difference, "s", 50)
    assert found.value == pytest.approx(0.5)
    assert found.n == 3


def test_never_compares_as_equal_to_never_and_as_infinitely_more_than_anything_else() -> None:
    assert slo.difference(math.inf, math.inf) == 0.0
    assert slo.difference(math.inf, 1.0) == math.inf
    assert slo.ratio(math.inf, math.inf) == 1.0
    assert slo.ratio(1.0, 0.0) == math.inf
    assert slo.ratio(0.0, 0.0) == 1.0
