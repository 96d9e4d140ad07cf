"""What holds of every load: seeded, within its bounds, the same however long it is."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.experiment import Load
from chaos.load.answer import Answer
from chaos.load.arrivals import poisson
from chaos.load.prompts import Ask, ask
from chaos.load.rate import TOLERANCE, offered
from chaos.scrape import quantile

RATES = st.floats(0.1, 50)
DURATIONS = st.floats(0.1, 20)
SEEDS = st.integers(0, 10**9)


@given(RATES, DURATIONS, DURATIONS, SEEDS)
def test_arrivals_ascend_within_the_duration_and_a_longer_one_only_adds(
    rate: float, duration: float, more: float, seed: int
) -> None:
    offsets = poisson(rate, duration, seed)
    assert offsets == sorted(offsets)
    assert all(0 <= offset < duration for offset in offsets)
    longer = poisson(rate, duration + more, seed)
    assert longer[: len(offsets)] == offsets


@given(SEEDS, st.integers(0, 5000), st.integers(1, 300), st.integers(0, 100), st.booleans())
def test_a_call_stays_within_its_loads_bounds(seed: int, n: int, low: int, span: int, tool: bool) -> None:
    load = Load(share=0.5, prompt_tokens=(low, low + span), output_tokens=(low, low + span), tool=tool)
    asked = ask(load, seed, n)
    assert low <= asked.max_tokens <= low + span
    assert 1 <= len(asked.prompt.split()) <= low + span
    assert bool(asked.tool_symbol) is tool
    assert ask(load, seed, n) == asked


@given(st.floats(0.01, 1000), st.none() | st.floats(0.01, 1000))
def test_an_offered_rate_is_always_near_the_measured_one(measured: float, earlier: float | None) -> None:
    rate = offered(measured, earlier)
    assert rate > 0
    assert abs(measured / rate - 1) <= max(TOLERANCE, 0.04) + 0.005 / rate + 1e-9


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from([200, 400, 429, 500, 503]), st.booleans())
def test_no_bytes_make_the_client_raise_or_count_as_success(raw: bytes, status: int, stream: bool) -> None:
    answer, asked = Answer(status=status), Ask("x", 4, stream)
    if stream:
        for line in raw.split(b"\n"):
            answer.line(b"data: " + line, 1.0)
    else:
        answer.body(raw)
    assert answer.close(asked, late=False) in ("failed", "refused")
    assert answer.error_type


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "usage", "error", "finish_reason", "content", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(JSON)
def test_no_json_makes_the_client_raise(event: object) -> None:
    answer = Answer(status=200)
    answer.line(b"data: " + json.dumps(event).encode(), 1.0)
    answer.close(Ask("x", 4, True), late=False)
    whole = Answer(status=200)
    whole.body(json.dumps(event).encode())
    whole.close(Ask("x", 4, False), late=False)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_the_histogram(counts: list[int], share: float) -> None:
    bounds = [*(0.1 * 2**i for i in range(len(counts) - 1)), math.inf]
    cumulative = {bound: float(sum(counts[: i + 1])) for i, bound in enumerate(bounds)}
    found = quantile(share, {}, cumulative)
    if sum(counts) == 0:
        assert found is None
    else:
        assert found is not None
        assert 0 <= found <= bounds[-2]
