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
from policies.observe import ObservedAttempt
from policies.outlier import OutlierDetection, OutlierSettings
from policies.outlier_rules import LatencyRule, SuccessRule
from policies.progress import Progress, Reached
from policies.work import Work
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

    def pass_trial(self, replica: Replica) -> None:
        assert replica in self.outlier.rotation()
        for _ in range(OutlierSettings().good_probes):
            self.outlier.succeeded(replica)

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


def test_once_its_trial_is_over_the_count_starts_again() -> None:
    bench = Bench(jitter=0.0)
    bench.fail(bench.replicas[0])
    bench.clock.at += 5.1
    bench.pass_trial(bench.replicas[0])
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


def test_a_replica_is_suspect_from_a_failure_to_the_next_success() -> None:
    bench = Bench()
    replica = bench.replicas[0]
    assert not bench.outlier.is_suspect(replica)
    bench.fail(replica, 1)
    assert bench.outlier.is_suspect(replica)
    bench.outlier.succeeded(replica)
    assert not bench.outlier.is_suspect(replica)


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
    replica = bench.replicas[0]
    bench.fail(replica)
    bench.clock.at += 5.1
    bench.pass_trial(replica)
    bench.clock.at += 9.0
    bench.outlier.succeeded(replica)
    bench.fail(replica)
    assert bench.sink.of(Ejected)[-1].for_s == 10.0, "nine seconds were not long enough"
    bench.clock.at += 10.1
    bench.pass_trial(replica)
    bench.clock.at += 60
    bench.outlier.succeeded(replica)
    bench.fail(replica)
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
    with pytest.raises(ValueError, match="probes"):
        OutlierSettings(probes=0)
    with pytest.raises(ValueError, match="lease_s"):
        OutlierSettings(lease_s=0)


def test_a_fleet_that_shrinks_to_the_ejected_takes_back_the_one_that_would_return_first() -> None:
    bench = Bench(4, jitter=0.0)
    bench.fail(bench.replicas[0])
    bench.clock.at += 1.0
    bench.fail(bench.replicas[1])
    assert bench.rotation() == ["r2", "r3"]
    bench.fleet.update(bench.replicas[:2])
    assert bench.rotation() == ["r0"]
    assert [event.replica for event in bench.sink.of(Returned)] == ["r0"]


def test_a_stall_ejects_at_once() -> None:
    bench = Bench()
    assert bench.outlier.stalled(bench.replicas[0], "silence") is True
    assert bench.rotation() == ["r1", "r2"]
    assert "no token progress" in bench.sink.of(Ejected)[0].reason
    assert bench.outlier.stalled(bench.replicas[0], "silence") is True, "it is out already"
    assert len(bench.sink.of(Ejected)) == 1
    assert bench.outlier.stalled(bench.replicas[1], "silence") is True
    assert bench.outlier.stalled(bench.replicas[2], "silence") is False, "the floor stays"


# --- the trial -------------------------------------------------------------------------------------------


def test_a_returned_replica_gets_its_probes_one_at_a_time_and_then_everything() -> None:
    returned: list[Replica] = []
    bench = Bench(jitter=0.0)
    bench.outlier = OutlierDetection(
        bench.fleet,
        clock=bench.clock,
        settings=OutlierSettings(jitter=0.0),
        sink=bench.sink,
        on_return=returned.append,
    )
    replica = bench.replicas[0]
    bench.fail(replica)
    bench.clock.at += 5.1
    for _ in range(3):
        assert replica in bench.outlier.admitted(bench.outlier.rotation())
        assert returned == []
        probe = attempt_on(bench, replica)
        bench.outlier.started(probe)
        assert replica not in bench.outlier.admitted(bench.outlier.rotation())
        answer(bench, probe, 0.1)
    assert replica in bench.outlier.admitted(bench.outlier.rotation())
    assert returned == [replica]
    for _ in range(5):
        bench.outlier.started(attempt_on(bench, replica))
        assert replica in bench.outlier.admitted(bench.outlier.rotation())


@pytest.mark.parametrize("how", ["cancelled", "never heard of again"])
def test_a_probe_that_is_lost_gives_its_lease_back(how: str) -> None:
    bench = Bench(jitter=0.0)
    replica = bench.replicas[0]
    bench.fail(replica)
    bench.clock.at += 5.1
    bench.rotation()
    probe = attempt_on(bench, replica)
    bench.outlier.started(probe)
    if how == "cancelled":
        probe.outcome = "cancelled"
        bench.outlier.ended(probe, None)
    else:
        bench.clock.at += OutlierSettings().lease_s
    assert replica in bench.outlier.admitted(bench.outlier.rotation())
    assert bench.rotation() == ["r0", "r1", "r2"], "and it was not held against the replica"


def test_a_failed_probe_ejects_again_and_one_that_began_before_the_ejection_does_not() -> None:
    bench = Bench(jitter=0.0)
    replica = bench.replicas[0]
    old = attempt_on(bench, replica)
    bench.outlier.started(old)
    bench.fail(replica)
    bench.clock.at += 5.1
    bench.rotation()
    probe = attempt_on(bench, replica)
    bench.outlier.started(probe)
    old.outcome = probe.outcome = "failed"
    bench.outlier.ended(old, ReplicaLost("cut"))
    assert bench.rotation() == ["r0", "r1", "r2"]
    bench.outlier.ended(probe, ReplicaLost("cut"))
    assert bench.rotation() == ["r1", "r2"]
    assert bench.sink.of(Ejected)[-1].for_s == 10.0


# --- against the others ----------------------------------------------------------------------------------


def attempt_on(bench: Bench, replica: Replica, *, expected_s: float | None = 0.08) -> ObservedAttempt:
    progress = Progress(bench.clock)
    return ObservedAttempt(
        "c",
        1,
        replica,
        Work(100, 20),
        progress,
        bench.clock.at,
        free_slot=True,
        abort=lambda error: None,
        expected_ttft_s=expected_s,
    )


def answer(bench: Bench, attempt: ObservedAttempt, after_s: float) -> None:
    """Let the first token come, and the answer end well."""
    attempt.first_token_at = attempt.started_at + after_s
    bench.outlier.first_token(attempt)
    attempt.outcome = "ok"
    bench.outlier.ended(attempt, None)


def load(bench: Bench, seconds: float, ttft_s: dict[str, float], *, expected_s: float | None = 0.08) -> None:
    """Six calls a second at each replica; ``ttft_s`` says how late its first tokens are."""
    for _ in range(round(6 * seconds)):
        bench.clock.at += 1 / 6
        for replica in bench.outlier.rotation():
            if replica in bench.outlier.admitted([replica]):
                attempt = attempt_on(bench, replica, expected_s=expected_s)
                bench.outlier.started(attempt)
                answer(bench, attempt, ttft_s.get(replica.name, 0.08))


@pytest.mark.parametrize("count", [2, 3, 6])
def test_a_replica_behind_a_slow_link_is_ejected_within_two_seconds(count: int) -> None:
    bench = Bench(count)
    load(bench, 2, {"r0": 0.48})
    assert "r0" not in bench.rotation()
    assert "latency" in bench.sink.of(Ejected)[0].reason


def test_while_it_stays_slow_it_is_probed_again_after_ever_longer_times() -> None:
    bench = Bench(jitter=0.0, max_s=40.0)
    load(bench, 100, {"r0": 0.48})
    assert [event.for_s for event in bench.sink.of(Ejected)] == [5.0, 10.0, 20.0, 40.0, 40.0]
    assert {event.replica for event in bench.sink.of(Ejected)} == {"r0"}
    assert all("still slow" in event.reason for event in bench.sink.of(Ejected)[1:])
    load(bench, 60, {})
    assert bench.rotation() == ["r0", "r1", "r2"]


def test_when_all_are_slow_none_is_an_outlier() -> None:
    bench = Bench()
    load(bench, 20, dict.fromkeys(("r0", "r1", "r2"), 2.0))
    assert bench.sink.of(Ejected) == []


@pytest.mark.parametrize(
    ("ttft_s", "why"),
    [(0.20, "twice the time, but hardly late"), (0.15, "neither")],
)
def test_a_small_difference_ejects_nobody(ttft_s: float, why: str) -> None:
    bench = Bench()
    load(bench, 20, {"r0": ttft_s})
    assert bench.sink.of(Ejected) == [], why


def test_later_by_a_margin_that_is_a_small_part_of_the_whole_ejects_nobody() -> None:
    bench = Bench()
    load(bench, 20, {"r0": 3.4, "r1": 3.0, "r2": 3.0}, expected_s=3.0)
    assert bench.sink.of(Ejected) == []


def test_calls_that_had_to_queue_say_nothing_of_latency() -> None:
    bench = Bench()
    load(bench, 20, {"r0": 3.0}, expected_s=None)
    assert bench.sink.of(Ejected) == []


def test_a_few_late_ones_say_nothing() -> None:
    bench = Bench()
    load(bench, 3, {})
    load(bench, 0.5, {"r0": 5.0})
    load(bench, 3, {})
    assert bench.sink.of(Ejected) == []


def test_after_a_burst_that_made_all_late_the_replica_with_fewer_calls_since_is_not_ejected_for_it() -> None:
    """The others' late ones are pushed out by good ones before its own are: its median is bad, but it is well."""
    bench = Bench()
    for replica in bench.replicas:
        for _ in range(7):
            answer(bench, attempt_on(bench, replica), 0.8)
    for replica in (*bench.replicas[1:] * 7, *bench.replicas[:1] * 2):
        answer(bench, attempt_on(bench, replica), 0.15)
    assert bench.rotation() == ["r0", "r1", "r2"]
    answer(bench, attempt_on(bench, bench.replicas[0]), 0.8)
    assert bench.rotation() == ["r1", "r2"]


def test_a_lone_replica_is_slow_by_nobodys_measure() -> None:
    bench = Bench(1)
    load(bench, 20, {"r0": 5.0})
    assert bench.sink.of(Ejected) == []


def mix(bench: Bench, replica: Replica, good: int, bad: int) -> None:
    """End attempts on the replica, the bad ones never three in a row."""
    for _ in range(max(good, bad)):
        if bad > 0:
            bench.outlier.failed(replica, ReplicaFailed("500"))
            bad -= 1
        if good > 0:
            bench.outlier.succeeded(replica)
            good -= 1


def test_a_replica_that_fails_more_than_the_others_is_ejected_though_never_three_times_in_a_row() -> None:
    bench = Bench()
    for other in bench.replicas[1:]:
        mix(bench, other, 12, 0)
    mix(bench, bench.replicas[0], 7, 7)
    assert bench.rotation() == ["r1", "r2"]
    assert "success rate" in bench.sink.of(Ejected)[0].reason


def test_when_all_fail_alike_the_success_rate_ejects_nobody() -> None:
    bench = Bench()
    for _ in range(5):
        for replica in bench.replicas:
            mix(bench, replica, 6, 6)
    assert bench.sink.of(Ejected) == []


def test_a_success_rate_needs_enough_attempts_here_and_elsewhere() -> None:
    bench = Bench()
    mix(bench, bench.replicas[0], 20, 20)
    assert bench.sink.of(Ejected) == [], "nothing is known of the others"
    bench.clock.at += 60
    for other in bench.replicas[1:]:
        mix(bench, other, 12, 0)
    mix(bench, bench.replicas[0], 5, 5)
    assert bench.sink.of(Ejected) == [], "ten are too few"


def test_rules_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="margin"):
        SuccessRule(margin=0)
    with pytest.raises(ValueError, match="least_attempts"):
        SuccessRule(least_attempts=101)
    with pytest.raises(ValueError, match="factor"):
        LatencyRule(factor=0.5)
    with pytest.raises(ValueError, match="window_s"):
        LatencyRule(window_s=0)
    with pytest.raises(ValueError, match="least_samples"):
        LatencyRule(least_samples=20)
