"""The modelled step time, as numbers; that the engine keeps it is shown on the real engine."""

from __future__ import annotations

import pytest

from cluster.pacing import Pace
from cluster.settings import Settings


def test_step_grows_with_its_tokens() -> None:
    pace = Pace(base_s=0.030, per_token_s=0.0002)
    assert pace.step_s(8) == pytest.approx(0.0316)
    assert pace.step_s(1000) == pytest.approx(0.230)


def test_empty_step_takes_no_time() -> None:
    assert Pace(0.030, 0.0002).step_s(0) == 0
    assert Pace(0.030, 0.0002).rest_s(0, 0.001) == 0


def test_computing_counts_towards_the_step() -> None:
    assert Pace(0.030, 0.0).rest_s(1, elapsed_s=0.012) == pytest.approx(0.018)


def test_step_that_computed_too_long_is_not_prolonged() -> None:
    assert Pace(0.030, 0.0).rest_s(1, elapsed_s=0.050) == 0


def test_full_batch_gives_the_capacity_that_the_documents_name() -> None:
    tokens_per_s = 8 / Pace(0.030, 0.0002).step_s(8)
    assert tokens_per_s == pytest.approx(253, abs=1)


def test_survives_the_way_to_the_engine() -> None:
    pace = Pace(0.05, 0.001)
    assert Pace.from_config({"of_others": 1, **pace.to_config()}) == pace


def test_engine_without_a_pace_is_an_error() -> None:
    with pytest.raises(KeyError):
        Pace.from_config({})


def test_negative_pace_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        Pace(-0.01, 0.0)


def test_comes_from_the_settings_and_can_be_off() -> None:
    assert Pace.of(Settings(pace_base_s=0.02, pace_per_token_s=0.001)) == Pace(0.02, 0.001)
    assert Pace.of(Settings(pace="off")) is None
