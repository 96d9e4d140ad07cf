"""Where the adaptive limit settles in front of engines that queue what is beyond their slots."""

from __future__ import annotations

import pytest

from policies.work import Work
from tests.fakes.paced_fleet import PacedFleet
from tests.fakes.virtual_time import run


@pytest.mark.parametrize("slots", [8, 16])
@pytest.mark.parametrize("share", [1.5, 3.0])
def test_under_overload_it_finds_the_slots_and_fills_them(slots: int, share: float) -> None:
    async def main() -> PacedFleet:
        fleet = PacedFleet(slots=slots, without=["early_rejection", "ladder"])
        await fleet.load(share, 40)
        fleet.assert_empty()
        return fleet

    fleet = run(main())
    least, mean, most = fleet.limit_a_replica(since=15)
    assert slots - 1 <= least
    assert slots <= mean <= 1.35 * slots
    assert most <= 1.6 * slots
    capacity = fleet.capacity_per_s(Work(200, 40)) * 40
    assert fleet.became()["ok"] >= 0.95 * capacity, "no slot is left idle"


def test_below_capacity_it_takes_nothing_away() -> None:
    async def main() -> PacedFleet:
        fleet = PacedFleet()
        await fleet.load(0.7, 30)
        return fleet

    fleet = run(main())
    assert set(fleet.became()) == {"ok"}
    assert fleet.limit_a_replica()[0] >= 8


def test_long_outputs_do_not_look_like_overload() -> None:
    """End-to-end latency would: a call of 400 tokens takes ten times as long as one of 40."""

    async def main() -> PacedFleet:
        fleet = PacedFleet()
        await fleet.load(0.6, 20)
        await fleet.load(0.6, 120, work=Work(200, 400), within_s=120)
        return fleet

    fleet = run(main())
    assert fleet.limit_a_replica(since=20)[0] >= 8
    assert set(fleet.became()) == {"ok"}


def test_when_slots_are_lost_behind_its_back_it_follows() -> None:
    async def main() -> tuple[float, float]:
        fleet = PacedFleet(replicas=1, without=["early_rejection", "ladder"])
        await fleet.load(1.5, 30)
        before = fleet.limit_a_replica(since=15)[1]
        fleet.engines._free[fleet.fleet.replicas[0]]._value -= 4  # four slots are taken by something else
        await fleet.load(1.5, 60)
        return before, fleet.limit_a_replica(since=60)[1]

    before, after = run(main())
    assert after < before - 1.5
