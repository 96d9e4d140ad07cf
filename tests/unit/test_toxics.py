"""Toxics as data: what would go wrong in silence on the server is refused before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from chaos import toxics
from chaos.toxics import InvalidToxicError, Toxic


def test_seconds_become_the_servers_milliseconds() -> None:
    assert toxics.latency(0.25, 0.05).attributes == {"latency": 250, "jitter": 50}
    assert toxics.timeout().attributes == {"timeout": 0}
    assert toxics.reset_peer(0.0001).attributes == {"timeout": 1}, "above 0 stays above 0"
    assert toxics.slow_close(1.5).attributes == {"delay": 1500}


def test_the_name_is_the_servers_own_unless_given() -> None:
    assert toxics.latency(1).name == "latency_downstream"
    assert toxics.bandwidth(10, stream="upstream").name == "bandwidth_upstream"
    assert toxics.limit_data(10, name="cut").name == "cut"


@pytest.mark.parametrize(
    ("toxic", "words"),
    [
        (Toxic("latencyy"), "did you mean latency?"),
        (Toxic("latency", {"latencyy": 5}), "did you mean latency?"),
        (Toxic("latency", {"delay": 5}), "it knows latency, jitter"),
        (Toxic("latency", {"latency": -1}), "integer of 0 or more"),
        (Toxic("latency", {"latency": 0.5}), "integer of 0 or more"),  # type: ignore[dict-item]
        (Toxic("latency", {"latency": True}), "integer of 0 or more"),
        (Toxic("latency", {}, stream="sideways"), "'sideways'"),
        (Toxic("latency", {}, toxicity=2), "at most 1"),
        (Toxic("latency", {}, toxicity=0), "above 0"),
        (Toxic("latency", {}, toxicity=float("nan")), "above 0"),
        (Toxic("latency", {}, name="a/b"), "'/'"),
        (Toxic("slicer", {"average_size": 0, "size_variation": 1}), "crashes"),
        (Toxic("slicer", {"average_size": 10}), "crashes"),
    ],
)
def test_a_toxic_that_would_not_do_what_it_says_is_refused(toxic: Toxic, words: str) -> None:
    with pytest.raises(InvalidToxicError, match=words.replace("?", r"\?")):
        toxic.checked()


def test_it_survives_the_wire() -> None:
    toxic = Toxic("slicer", {"average_size": 10, "size_variation": 2, "delay": 3}, "upstream", "s", 0.5)
    assert Toxic.from_wire(toxic.to_wire()) == toxic.checked()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"type": "timeout"},
        {"stream": "upstream"},
        {"toxicity": 0.4},
        {"attributes": {"latency": 6, "jitter": 0}},
        {"attributes": {"jitter": 0}},
    ],
)
def test_what_the_server_took_must_be_what_was_asked_for(change: dict[str, Any]) -> None:
    asked = Toxic("latency", {"latency": 5}, toxicity=0.5)
    taken = {**asked.to_wire(), "attributes": {"latency": 5, "jitter": 0}}
    assert asked.is_met_by(Toxic.from_wire(taken))
    assert not asked.is_met_by(Toxic.from_wire(taken | change))
