"""Arrivals, prompts and fault times follow from the seed alone."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from chaos.experiment import Load, Phases
from chaos.load.arrivals import poisson
from chaos.load.plan import choose_target, make_plan
from chaos.load.prompts import WORDS, ask, text_of
from chaos.load.rate import GRID, TOLERANCE, RateMemory, offered, on_grid
from chaos.scenarios.worker_loss import WORKER_LOSS

LOAD = Load(share=0.5)


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    assert poisson(10, 20, 7) == poisson(10, 20, 7)
    assert poisson(10, 20, 7) != poisson(10, 20, 8)


def test_a_longer_duration_changes_nothing_that_came_before() -> None:
    short, long = poisson(10, 5, 7), poisson(10, 50, 7)
    assert long[: len(short)] == short
    assert all(offset >= 5 for offset in long[len(short) :])


def test_arrivals_are_poisson_of_the_asked_rate() -> None:
    offsets = poisson(20, 500, 1)
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert offsets[-1] < 500
    # 10,000 expected: five standard deviations are 500
    assert abs(len(offsets) - 10_000) < 500
    gaps = [b - a for a, b in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1)  # exponential gaps: their deviation is their mean


@pytest.mark.parametrize(("rate", "duration"), [(0, 1), (-1, 1), (1, 0)])
def test_a_rate_or_duration_that_is_not_positive_is_refused(rate: float, duration: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        poisson(rate, duration, 1)


def test_the_plan_is_the_same_in_another_process() -> None:
    """Nothing may depend on the hash seed of a process, on its locale or on import order."""
    code = (
        "from chaos.load.plan import make_plan; from chaos.scenarios.worker_loss import WORKER_LOSS;"
        "p = make_plan(WORKER_LOSS, 9.5, 7);"
        "print([(c.n, c.offset_s, c.ask.sha, c.ask.max_tokens, c.ask.stream) for c in p.calls], p.fault_offset_s)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plan = make_plan(WORKER_LOSS, 9.5, 7)
    calls = [(c.n, c.offset_s, c.ask.sha, c.ask.max_tokens, c.ask.stream) for c in plan.calls]
    assert ran.stdout.strip() == f"{calls} {plan.fault_offset_s}"


def test_what_a_call_asks_does_not_depend_on_the_rate() -> None:
    slow, fast = make_plan(WORKER_LOSS, 5, 7), make_plan(WORKER_LOSS, 20, 7)
    assert [c.ask for c in slow.calls] == [c.ask for c in fast.calls[: len(slow.calls)]]
    assert slow.fault_offset_s == fast.fault_offset_s


def test_seeds_differ_in_prompts_and_in_the_faults_time() -> None:
    first, second = make_plan(WORKER_LOSS, 10, 1), make_plan(WORKER_LOSS, 10, 2)
    assert first.calls[0].ask.prompt != second.calls[0].ask.prompt
    assert first.fault_offset_s != second.fault_offset_s


def test_a_plan_covers_the_phases_around_the_fault() -> None:
    experiment = replace(WORKER_LOSS, phases=Phases(warm_up_s=1, steady_s=10, hold_s=4, recovery_s=2))
    plan = make_plan(experiment, 10, 3)
    assert 11 <= plan.fault_offset_s <= 12
    assert plan.duration_s == pytest.approx(plan.fault_offset_s + 6)
    assert plan.calls[-1].offset_s < plan.duration_s


def test_worker_loss_offers_enough_calls_in_its_window() -> None:
    """At the rate of two paced replicas (about 30 calls/s) every seed must bring 100 calls in ten seconds."""
    for seed in range(200):
        plan = make_plan(WORKER_LOSS, on_grid(30 * WORKER_LOSS.load.share), seed)
        start = plan.fault_offset_s
        inside = sum(1 for call in plan.calls if start <= call.offset_s < start + 10)
        assert inside >= WORKER_LOSS.minimum_counted, f"seed {seed}: {inside}"


def test_prompts_have_the_drawn_lengths_and_distinct_beginnings() -> None:
    asks = [ask(LOAD, 7, n) for n in range(200)]
    assert all(LOAD.output_tokens[0] <= a.max_tokens <= LOAD.output_tokens[1] for a in asks)
    words = [len(a.prompt.split()) for a in asks]
    assert min(words) >= LOAD.prompt_tokens[0] - 5
    assert max(words) <= LOAD.prompt_tokens[1] + 5
    assert len({a.prompt[:60] for a in asks}) == 200
    assert 0.65 < sum(a.stream for a in asks) / 200 < 0.95
    assert not any(a.tool_symbol for a in asks)
    assert all(ask(replace(LOAD, tool=True), 7, n).tool_symbol for n in range(20))


def test_a_prompt_has_about_as_many_tokens_as_asked_for_in_the_projects_tokenizer() -> None:
    tokenizer = pytest.importorskip("cluster.model.tokenizer")
    trained = tokenizer.train(tokenizer.training_text(), 2048)
    for tokens in (50, 150, 400):
        counted = len(trained.encode(text_of(tokens, random.Random(tokens))).ids)
        assert counted == pytest.approx(tokens, rel=0.1)
    assert len(set(WORDS)) == len(WORDS)


def test_the_seed_chooses_the_target_among_the_live_labels() -> None:
    labels = ["client", "tool", "replica-0", "replica-1", "replica-2"]
    chosen = {choose_target("replica-*", labels, seed) for seed in range(40)}
    assert chosen == {"replica-0", "replica-1", "replica-2"}
    assert choose_target("replica-*", labels, 7) == choose_target("replica-*", list(reversed(labels)), 7)
    assert choose_target("tool", labels, 7) == "tool"
    with pytest.raises(ValueError, match="no live link matches"):
        choose_target("store-*", labels, 7)


def test_an_earlier_rate_is_kept_while_the_measurement_agrees() -> None:
    assert offered(10.0, None) == on_grid(10.0)
    assert offered(10.0 * (1 + TOLERANCE * 0.9), 10.0) == 10.0
    assert offered(10.0 * (1 + TOLERANCE * 1.1), 10.0) == on_grid(10.0 * (1 + TOLERANCE * 1.1))


def test_a_rate_on_the_grid_is_near_the_measured_one() -> None:
    for measured in (0.3, 1.0, 7.77, 14.6, 250.0):
        assert abs(on_grid(measured) / measured - 1) < (GRID - 1) * 0.6 + 0.02
    with pytest.raises(ValueError, match="positive"):
        on_grid(0)


def test_rates_are_remembered_by_what_they_belong_to(tmp_path) -> None:
    memory = RateMemory(tmp_path / "rates.json")
    here, there = memory.key("worker_loss", {"replicas": 3}), memory.key("worker_loss", {"replicas": 4})
    assert memory.earlier(here) is None
    memory.keep(here, 9.5)
    memory.keep(there, 12.0)
    assert RateMemory(tmp_path / "rates.json").earlier(here) == 9.5
    (tmp_path / "rates.json").write_text("{half")
    assert memory.earlier(here) is None
    memory.keep(here, 8.0)
    assert memory.earlier(here) == 8.0
