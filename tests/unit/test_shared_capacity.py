"""A capacity is shared only with the same mix on the very same cluster, and only for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from chaos.experiment import CallClass, Load
from chaos.history import CalibrationRecord
from chaos.shared_capacity import MOST_AGE_S, SharedCapacity
from chaos.substrate import Substrate

LOAD = Load(share=0.5)
MEASURED = (CalibrationRecord(3, 30.0, 400.0, 7.0, 200, measured_at=100.0),)


class Place:
    """As much of a substrate as tells one cluster from another."""

    def __init__(self, instance: str = "first", **settings: Any) -> None:
        self.name = "fake"
        self._instance = instance
        self._settings = settings

    def instance(self) -> str:
        return self._instance

    def settings(self) -> dict[str, Any]:
        return self._settings


def key(load: Load = LOAD, place: Place | None = None, *, with_loss: bool = False) -> str:
    return SharedCapacity.key(cast(Substrate, place or Place()), load, with_loss=with_loss)


def test_what_was_kept_is_found_and_says_from_which_run_it_is() -> None:
    shared = SharedCapacity(now=lambda: 101.0)
    assert shared.find(key()) == ()
    shared.keep(key(), MEASURED, "7-1234")
    assert shared.find(key()) == (replace(MEASURED[0], shared_from="7-1234"),)


def test_another_share_of_it_is_the_same_capacity_and_everything_else_is_another() -> None:
    mix = (CallClass("one", 1.0, (8, 12), (6, 10)),)
    assert key(replace(LOAD, share=0.9, of_replicas_lost=1)) == key()
    others = [
        key(replace(LOAD, output_tokens=(1, 2))),
        key(replace(LOAD, classes=mix)),
        key(with_loss=True),
        key(place=Place("second")),
        key(place=Place(pace="off")),
    ]
    assert len({key(), *others}) == 6


def test_what_is_too_old_is_measured_again() -> None:
    now = 100.0
    shared = SharedCapacity(now=lambda: now)
    shared.keep(key(), MEASURED, "run")
    now += MOST_AGE_S
    assert shared.find(key())
    now += 1
    assert shared.find(key()) == ()
