"""Passive ejection: what counts, for how long, and the floor."""

from __future__ import annotations

import random

import pytest

from policies.errors import (
    AttemptError,
    AttemptTimeout,
    CallRejected,
    ReplicaBusy,
    ReplicaFailed,
    ReplicaLost,
)
from policies.events import Ejected, Returned
from policies.fleet import Fleet, Replica
from policies.outlier import OutlierDetection, OutlierSettings
from policies.progress import Reached
from tests.fakes.policy_bench import FixedClock, Remembering


class Bench:
    """Three replicas under watch."""

    def __init__(self, count: int = 3, **settings: float) -> None:
        self.clock = FixedClock()
        self.sink = Remembering()
        self.replicas = [Replica(f"r{n}", f"host:{n}") for n in range(count)]
        self.fleet = Fleet(self.replicas)
        self.outlier = OutlierDetection(
            self.fleet,
            clock=self.clock,
            settings=OutlierSettings(**settings),  # type: ignore[arg-type]
            rng=random.Random(1),
            sink=self.sink,
        )

    def fail(self, replica: Replica, times: int = 3, error: AttemptError | None = None) -> None:
        for _ in range(times):
            self.outlier.failed(replica, error or ReplicaLost("cut"))

    def rotation(self) -> list[str]:
        return [replica.name for replica in self.outlier.rotation()]


@pytest.mark.parametrize(
    "error",
    [
        ReplicaLost("refused"),
        ReplicaLost("cut in mid-stream", reached=Reached.MID_STREAM),
        AttemptTimeout("no first token", reached=Reached.HEADERS),
        AttemptTimeout("stalled", reached=Reached.MID_STREAM),
        ReplicaFailed("500"),
    ],
)
def test_three_consecutive_errors_of_its_own_eject_a_replica(error: AttemptError) -> None:
    bench = Bench()
    bench.fail(bench.replicas[0], 2, error)
    assert bench.rotation() == ["r0", "r1", "r2"]
    bench.fail(bench.replicas[0], 1, error)
    assert bench.rotation() == ["r1", "r2"]
    assert type(error).__name__ in bench.sink.of(Ejected)[0].reason


@pytest.mark.parametrize("error", [CallRejected("too long", status=400), ReplicaBusy("503")])
def test_long_prompts_and_a_busy_replica_never_eject_it(error: AttemptError) -> None:
    bench = Bench()
    bench.fail(bench.replicas[0], 50, error)
    assert bench.rotation() == ["r0", "r1", "r2"]


def test_a_success_in_between_starts_the_count_again() -> None:
    bench = Bench()
    for _ in range(10):
        bench.fail(bench.replicas[0], 2)
        bench.outlier.succeeded(bench.replicas[0])
    assert bench.rotation() == ["r0", "r1", "r2"]


def test_a_success_starts_the_count_again_soon_after_a_return_too() -> None:
    bench = Bench(jitter=0.0)
    bench.fail(bench.replicas[0])
    bench.clock.at += 5.1
    bench.rotation()
    bench.outlier.succeeded(bench.replicas[0])
    for _ in range(3):
        bench.fail(bench.replicas[0], 2)
        bench.outlier.succeeded(bench.replicas[0])
    assert bench.rotation() == ["r0", "r1", "r2"]


def test_one_failure_after_its_return_and_it_is_out_again() -> None:
    bench = Bench(jitter=0.0)
    bench.fail(bench.replicas[0])
    bench.clock.at += 5.1
    assert bench.rotation() == ["r0", "r1", "r2"]
    bench.fail(bench.replicas[0], 1)
    assert bench.rotation() == ["r1", "r2"]
    assert bench.sink.of(Ejected)[-1].for_s == 10.0


def test_silence_before_the_headers_counts_twice() -> None:
    bench = Bench()
    bench.fail(bench.replicas[0], 1, AttemptTimeout("no headers"))
    assert bench.rotation() == ["r0", "r1", "r2"]
    bench.fail(bench.replicas[0], 1, AttemptTimeout("no headers"))
    assert bench.rotation() == ["r1", "r2"]


def test_a_replica_is_on_trial_from_a_failure_to_the_next_success() -> None:
    bench = Bench(jitter=0.0)
    replica = bench.replicas[0]
    assert not bench.outlier.is_on_trial(replica)
    bench.fail(replica, 1)
    assert bench.outlier.is_on_trial(replica)
    bench.outlier.succeeded(replica)
    assert not bench.outlier.is_on_trial(replica)
    bench.fail(replica)
    bench.clock.at += 5.1
    bench.rotation()
    assert bench.outlier.is_on_trial(replica), "and after its return"


def test_a_busy_answer_is_neutral_and_does_not_start_the_count_again() -> None:
    bench = Bench()
    bench.fail(bench.replicas[0], 2)
    bench.fail(bench.replicas[0], 1, ReplicaBusy("503"))
    bench.fail(bench.replicas[0], 1)
    assert bench.rotation() == ["r1", "r2"]


@pytest.mark.parametrize(("count", "stay"), [(1, 1), (2, 1), (3, 1), (4, 2), (10, 3)])
def test_the_floor_stays_in_rotation_whatever_happens(count: int, stay: int) -> None:
    bench = Bench(count)
    for replica in bench.replicas:
        bench.fail(replica, 20)
    assert len(bench.rotation()) == stay


def test_a_replica_returns_when_its_time_is_up_and_is_ejected_longer_the_next_time() -> None:
    bench = Bench(jitter=0.0, base_s=5.0)
    durations = []
    for _ in range(4):
        bench.fail(bench.replicas[0])
        durations.append(bench.sink.of(Ejected)[-1].for_s)
        bench.clock.at += durations[-1] - 0.01
        assert bench.rotation() == ["r1", "r2"]
        bench.clock.at += 0.02
        assert bench.rotation() == ["r0", "r1", "r2"]
    assert durations == [5.0, 10.0, 20.0, 40.0]
    assert len(bench.sink.of(Returned)) == 4


def test_the_ejection_is_capped_and_jittered() -> None:
    durations = set()
    bench = Bench(base_s=5.0, max_s=20.0, jitter=0.2)
    for _ in range(30):
        bench.fail(bench.replicas[0])
        durations.add(bench.sink.of(Ejected)[-1].for_s)
        bench.clock.at += 100
        bench.rotation()
    later = [duration for duration in durations if duration > 13]
    assert len(later) > 20, "no two are alike"
    assert all(16.0 <= duration <= 24.0 for duration in later)


def test_a_replica_that_did_well_for_long_is_forgiven() -> None:
    bench = Bench(jitter=0.0, base_s=5.0)
    bench.fail(bench.replicas[0])
    bench.clock.at += 5.1
    bench.rotation()
    bench.clock.at += 60
    bench.outlier.succeeded(bench.replicas[0])
    bench.fail(bench.replicas[0])
    assert bench.sink.of(Ejected)[-1].for_s == 5.0


def test_failures_of_attempts_sent_before_the_ejection_do_not_prolong_it() -> None:
    bench = Bench(jitter=0.0)
    bench.fail(bench.replicas[0], 30)
    assert len(bench.sink.of(Ejected)) == 1
    bench.clock.at += 5.1
    assert "r0" in bench.rotation()


def test_a_replica_that_discovery_removed_and_added_again_starts_clean() -> None:
    bench = Bench()
    bench.fail(bench.replicas[0])
    assert bench.rotation() == ["r1", "r2"]
    bench.fleet.update(bench.replicas[1:])
    assert bench.rotation() == ["r1", "r2"]
    bench.fleet.update([Replica("r0", "host:0"), *bench.replicas[1:]])
    assert bench.rotation() == ["r0", "r1", "r2"]


def test_an_ejected_replica_that_is_removed_does_not_use_up_the_floor_of_the_others() -> None:
    bench = Bench(2)
    bench.fail(bench.replicas[0])
    newcomer = Replica("r9", "host:9")
    bench.fleet.update([bench.replicas[1], newcomer])
    bench.fail(newcomer)
    assert bench.rotation() == ["r1"]


def test_nothing_is_kept_of_replicas_that_are_gone() -> None:
    bench = Bench()
    for number in range(1000):
        replica = Replica(f"x{number}", f"host:{number}")
        bench.fleet.update([*bench.replicas, replica])
        bench.fail(replica)
        bench.fleet.update(bench.replicas)
        bench.rotation()
    assert len(bench.outlier._records) <= 1


def test_settings_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="consecutive_errors"):
        OutlierSettings(consecutive_errors=0)
    with pytest.raises(ValueError, match="base_s"):
        OutlierSettings(base_s=10, max_s=5)
    with pytest.raises(ValueError, match="floor_share"):
        OutlierSettings(floor_share=0)
