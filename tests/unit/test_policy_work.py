"""Token work: reservations, the ledger, learned rates, and what is predicted from them."""

from __future__ import annotations

import math
import random

import pytest

from policies.fleet import Replica
from policies.rates import LineFit, RatePriors, Rates
from policies.work import Backlog, OutputEstimator, Work, WorkLedger
from tests.fakes.policy_bench import FixedClock

A, B = Replica("a"), Replica("b")
PACED = RatePriors(slots=8, prefill_base_s=0.03, prefill_s_per_token=0.0002, tpot_s=0.03)


def test_a_reservation_shrinks_with_its_tokens_and_leaves_nothing_behind() -> None:
    ledger = WorkLedger()
    with ledger.reserve(A, Work(100, 20)) as reservation:
        assert (ledger.at(A).prompt_tokens, ledger.at(A).output_tokens) == (100, 20)
        reservation.tokens(1)
        assert (ledger.at(A).prompt_tokens, ledger.at(A).output_tokens) == (0, 19)
        reservation.tokens(50)
        assert ledger.at(A).tokens == 0, "more tokens than were expected cost nothing more"
        assert ledger.at(A).attempts == 1
    assert ledger.at(A).attempts == ledger.total.attempts == ledger.total.tokens == 0


def test_the_backlog_is_the_sum_over_the_replicas() -> None:
    ledger = WorkLedger()
    first, second = ledger.reserve(A, Work(100, 20)), ledger.reserve(B, Work(7, 3, sequences=2))
    assert (ledger.total.attempts, ledger.total.tokens, ledger.total.sequences) == (2, 130, 3)
    first.release()
    first.release()
    assert (ledger.total.attempts, ledger.total.tokens) == (1, 10)
    first.tokens(5)
    second.release()
    assert ledger.total.tokens == 0


def test_idle_replicas_take_no_memory() -> None:
    ledger = WorkLedger()
    for number in range(1000):
        ledger.reserve(Replica(str(number)), Work(1, 1)).release()
    assert not ledger._by_replica


def test_work_is_checked_when_it_is_made() -> None:
    for wrong in ({"prompt_tokens": -1}, {"output_tokens": -1}, {"sequences": 0}):
        with pytest.raises(ValueError, match="at least"):
            Work(**wrong)


def test_the_expected_output_starts_at_the_limit_and_follows_what_is_used_of_it() -> None:
    estimator = OutputEstimator()
    assert estimator.estimate(400, ceiling=4000) == 400
    for _ in range(200):
        estimator.observe(100, limit=400)
    assert estimator.estimate(400, ceiling=4000) == pytest.approx(100, abs=2)
    assert estimator.estimate(None, ceiling=4000) == pytest.approx(100, abs=2)
    assert estimator.estimate(None, ceiling=30) == 30


def test_a_line_fit_finds_base_and_slope_among_noise() -> None:
    rng = random.Random(1)
    fit = LineFit(0.01, 0.001, span=1000, weight=0.05)
    for _ in range(400):
        tokens = rng.randint(10, 2000)
        fit.observe(tokens, 0.05 + tokens * 0.0002 + rng.uniform(-0.005, 0.005))
    assert fit.base == pytest.approx(0.05, abs=0.01)
    assert fit.slope == pytest.approx(0.0002, rel=0.1)


def test_prompts_that_are_all_alike_do_not_upset_the_slope() -> None:
    """With one length the slope cannot be seen: short prompts must not make long ones look impossible."""
    fit = LineFit(0.03, 0.0002, span=1024, weight=0.05)
    for _ in range(2000):
        fit.observe(5, 0.045)
    assert fit.base + 5 * fit.slope == pytest.approx(0.045, abs=0.005)
    assert 0 < fit.slope < 0.001


def test_rates_are_learned_from_what_was_seen() -> None:
    rates = Rates(FixedClock(), PACED)
    for _ in range(200):
        rates.finished(21, 20 * 0.01)
        rates.first_token(1000, 0.5)
        rates.first_token(100, 0.1)
    assert rates.decode_tokens_per_s == pytest.approx(800, rel=0.05)
    assert rates.prefill_tokens_per_s == pytest.approx(900 / 0.4, rel=0.1)


def test_at_an_idle_replica_the_first_token_takes_its_own_prefill() -> None:
    rates = Rates(FixedClock(), PACED)
    assert rates.predicted_ttft_s(WorkLedger().at(A), 1000) == pytest.approx(0.03 + 0.2)


def test_with_a_free_slot_only_prefill_is_ahead_behind_full_slots_the_outputs_are_too() -> None:
    rates, ledger = Rates(FixedClock(), PACED), WorkLedger()
    for _ in range(7):
        ledger.reserve(A, Work(0, 200))
    assert rates.predicted_ttft_s(ledger.at(A), 100) == pytest.approx(0.05)
    ledger.reserve(A, Work(0, 200))
    one_ahead = rates.predicted_ttft_s(ledger.at(A), 100)
    assert one_ahead == pytest.approx(0.05 + 200 / (8 / 0.03))
    for _ in range(8):
        ledger.reserve(A, Work(0, 200))
    assert rates.predicted_ttft_s(ledger.at(A), 100) == pytest.approx(0.05 + 9 * 200 / (8 / 0.03))


def test_offered_work_and_headroom_are_in_replica_seconds() -> None:
    clock = FixedClock()
    rates = Rates(clock, PACED)
    work = Work(500, 80)
    assert rates.service_s(work) == pytest.approx(0.1 + 80 * 0.03 / 8)
    for _ in range(2000):
        rates.arrived(work)
        clock.at += 0.1
    assert rates.offered() == pytest.approx(4.0, rel=0.05)
    assert rates.headroom(8) == pytest.approx(0.5, abs=0.03)
    assert rates.headroom(2) == pytest.approx(-1.0, abs=0.1)
    assert rates.headroom(0) == -math.inf
    clock.at += 1000
    assert rates.headroom(1) == pytest.approx(1.0)


def test_priors_are_checked_when_they_are_made() -> None:
    for wrong in ({"slots": 0}, {"tpot_s": 0}, {"weight": 2}, {"prefill_base_s": -1}):
        with pytest.raises(ValueError):
            RatePriors(**wrong)  # type: ignore[arg-type]


def test_backlogs_of_several_places_add_up_and_drain_at_the_rate_of_the_live_replicas() -> None:
    rates, ledger = Rates(FixedClock(), PACED), WorkLedger()
    with ledger.reserve(A, Work(500, 80)):
        backlog = ledger.total.backlog() + Backlog(calls=2, prompt_tokens=1000, output_tokens=160)
        assert (backlog.calls, backlog.tokens) == (3, 1740)
    assert backlog.calls == 3, "a backlog is of one instant"
    assert rates.backlog_s(backlog) == pytest.approx(3 * rates.service_s(Work(500, 80)))
    assert rates.drain_s(backlog, 3) == pytest.approx(rates.service_s(Work(500, 80)))
    assert rates.drain_s(backlog, 0) == math.inf
    assert rates.drain_s(Backlog(), 0) == 0


def test_capacity_is_one_replica_second_a_second_for_each_in_rotation() -> None:
    rates = Rates(FixedClock(), PACED)
    assert [rates.capacity(live) for live in (-1, 0, 1, 3)] == [0, 0, 1, 3]


def test_the_rates_say_what_is_usual_at_a_free_slot() -> None:
    rates = Rates(FixedClock(), PACED)
    assert rates.unloaded_ttft_s(1000) == pytest.approx(0.23)
    assert rates.tpot_s == pytest.approx(0.03)
    for _ in range(200):
        rates.finished(21, 20 * 0.05)
    assert rates.tpot_s == pytest.approx(0.05, rel=0.01)
