"""The adaptive limit: what moves it, what does not, and where it settles."""

from __future__ import annotations

import pytest

from policies.balance import RoundRobin
from policies.errors import (
    AttemptError,
    AttemptTimeout,
    CallRejected,
    EngineStalled,
    ReplicaBusy,
    ReplicaFailed,
    ReplicaLost,
)
from policies.events import LimitChanged
from policies.fleet import Fleet, Replica
from policies.limits import AimdLimit, Limit, LimitSettings, Outcome, Sample
from policies.observe import ObservedAttempt
from policies.progress import Progress
from policies.rates import RatePriors, Rates
from policies.replica_limits import ReplicaLimits, outcome_of
from policies.within_limits import WithinLimits
from policies.work import Work
from tests.fakes.policy_bench import FixedClock, Remembering

GOOD, SLOW = 1.2, 9.0


def fed(
    limit: AimdLimit, at: float, *, ttft: float | None = GOOD, in_use: int | None = None, **more: object
) -> str:
    used = round(limit.value) if in_use is None else in_use
    return limit.sample(Sample(at, used, ttft_ratio=ttft, **more), at)  # type: ignore[arg-type]


def test_it_begins_a_little_above_the_slots_and_knows_its_bounds() -> None:
    limit = AimdLimit(8)
    assert limit.value == 10
    assert limit.bounds == (1, 32)


def test_it_grows_by_about_one_in_as_many_first_tokens_as_it_is_large() -> None:
    limit = AimdLimit(8)
    for number in range(10):
        fed(limit, number)
    assert 10.9 < limit.value < 11.1


def test_it_does_not_grow_while_it_is_not_in_use() -> None:
    limit = AimdLimit(8)
    for number in range(1000):
        fed(limit, number, in_use=4)
    assert limit.value == 10


def test_a_slow_first_token_lowers_it_only_while_it_is_in_use() -> None:
    """Else a replica that does little, but has one long prompt, would meet the next burst with a small limit."""
    limit = AimdLimit(8)
    assert fed(limit, 0, ttft=SLOW, in_use=2) == ""
    assert limit.value == 10
    assert fed(limit, 1, ttft=SLOW) == "ttft"
    assert limit.value == pytest.approx(9)


def test_slow_output_lowers_it_too_and_swift_output_does_not_raise_it() -> None:
    limit = AimdLimit(8)
    assert fed(limit, 1, ttft=None, tpot_ratio=4.0) == "tpot"
    lowered = limit.value
    assert fed(limit, 5, ttft=None, tpot_ratio=1.0) == ""
    assert limit.value == lowered < 10


def test_one_bad_moment_counts_once() -> None:
    limit = AimdLimit(8)
    for _ in range(20):
        fed(limit, 100.0, ttft=SLOW, in_use=10)
    assert limit.value == pytest.approx(9)
    assert fed(limit, 100.9, ttft=SLOW, in_use=10) == "", "within the cool-down"


def test_an_attempt_that_saw_the_old_limit_does_not_lower_the_new_one() -> None:
    limit = AimdLimit(8)
    fed(limit, 100.0, ttft=SLOW)
    old = Sample(started_at=99.0, in_use=10, ttft_ratio=SLOW)
    assert limit.sample(old, now=105.0) == ""
    assert limit.sample(Sample(started_at=104.0, in_use=10, ttft_ratio=SLOW), now=105.0) == "ttft"


def test_below_half_of_where_it_began_it_recovers_twice_as_fast_each_round() -> None:
    limit = AimdLimit(8)
    for number in range(20):
        fed(limit, number * 2.0, ttft=None, outcome=Outcome.DROPPED)
    assert limit.value == 1
    for number in range(6):
        fed(limit, 100 + number)
    assert limit.value > 5
    for number in range(60):
        fed(limit, 200 + number)
    assert limit.value > 10


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"least": 0}, "least"),
        ({"initial": 0.5}, "initial"),
        ({"initial": 9, "most": 5}, "initial"),
        ({"slow_ttft": 1}, "slow_ttft"),
        ({"backoff": 1}, "backoff"),
        ({"cool_down_s": -1}, "cool_down_s"),
    ],
)
def test_settings_say_which_knob_is_wrong(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LimitSettings(**wrong)


def test_only_overload_is_a_drop() -> None:
    for error in (AttemptTimeout("t"), EngineStalled("s"), ReplicaBusy("b"), TimeoutError()):
        assert outcome_of(error) is Outcome.DROPPED
    for error in (ReplicaLost("l"), ReplicaFailed("f"), CallRejected("4xx", status=400), KeyError()):
        assert outcome_of(error) is Outcome.IGNORED
    assert outcome_of(None) is Outcome.SUCCESS


class Watched:
    """Replica limits on a clock that is moved by hand."""

    def __init__(self, *names: str) -> None:
        self.clock = FixedClock()
        self.fleet = Fleet(Replica(name) for name in names)
        self.sink = Remembering()
        rates = Rates(
            self.clock, RatePriors(slots=8, prefill_base_s=0.05, prefill_s_per_token=0.0002, tpot_s=0.04)
        )
        self.limits = ReplicaLimits(self.fleet, rates, clock=self.clock, sink=self.sink)

    def begin(self, replica: Replica, prompt: int = 100, sequences: int = 1) -> ObservedAttempt:
        progress = Progress(self.clock)
        attempt = ObservedAttempt(
            "c", 1, replica, Work(prompt, 20, sequences), progress, self.clock.now(), True, lambda _: None
        )
        self.limits.started(attempt)
        return attempt

    def first_token(self, attempt: ObservedAttempt, after_s: float) -> None:
        self.clock.at += after_s
        attempt.progress.tokens()
        attempt.first_token_at = self.clock.at
        attempt.tokens = 1
        self.limits.first_token(attempt)

    def end(self, attempt: ObservedAttempt, outcome: str, error: AttemptError | None = None) -> None:
        attempt.outcome = outcome
        self.limits.ended(attempt, error)


def test_the_limit_of_the_fleet_is_the_sum_and_falls_with_the_replica() -> None:
    bench = Watched("a", "b", "c")
    a, b, _ = bench.fleet.replicas
    assert bench.limits.total(bench.fleet.replicas) == 30
    assert bench.limits.total([a, b]) == 20
    bench.fleet.update([a])
    assert bench.limits.total(bench.fleet.replicas) == 10
    assert bench.limits.of(b) == 10, "what is gone may still be asked for"
    assert len(bench.limits._records) == 1


def test_a_replica_that_comes_back_starts_anew() -> None:
    bench = Watched("a")
    (old,) = bench.fleet.replicas
    attempt = bench.begin(old)
    bench.end(attempt, "failed", AttemptTimeout("t"))
    assert bench.limits.of(old) == 7
    bench.fleet.update([])
    bench.fleet.update([Replica("a")])
    assert bench.limits.of(bench.fleet.replicas[0]) == 10


def test_first_tokens_are_judged_by_their_own_prefill_and_by_what_waits_ahead_to_be_prefilled() -> None:
    """A prompt of 3,000 tokens takes twelve times as long as a short one; that is not crowding."""
    bench = Watched("a")
    (a,) = bench.fleet.replicas
    held = [bench.begin(a, prompt=0) for _ in range(4)]
    long, behind = bench.begin(a, prompt=3000), bench.begin(a)
    bench.first_token(long, 0.7)
    bench.first_token(behind, 0.05)
    assert bench.limits.of(a) > 10
    crowded = bench.begin(a)
    bench.first_token(crowded, 0.7)
    assert bench.limits.of(a) < 10
    for one in (*held, long, behind, crowded):
        bench.end(one, "ok")
    assert bench.limits.in_use(a) == 0


def test_what_waits_for_a_slot_ahead_of_a_call_is_no_excuse_for_a_late_first_token() -> None:
    """Else an engine's own queue would explain itself: the longer it is, the later the tokens may come."""
    bench = Watched("a")
    (a,) = bench.fleet.replicas
    for _ in range(8):
        bench.first_token(bench.begin(a), 0.05)
    waiting = [bench.begin(a, prompt=1000) for _ in range(5)]
    bench.first_token(waiting[-1], 1.3)
    assert [event.reason for event in bench.sink.of(LimitChanged)] == ["ttft"]


def test_it_tells_when_a_limit_fell_and_when_it_is_back() -> None:
    bench = Watched("a")
    (a,) = bench.fleet.replicas
    grown: list[float] = []
    bench.limits.changed = lambda: grown.append(bench.limits.of(a))
    bench.end(bench.begin(a), "failed", AttemptTimeout("t"))
    assert bench.sink.of(LimitChanged) == [LimitChanged("a", 7.0, "drop")]
    held = [bench.begin(a) for _ in range(12)]
    for one in held:
        bench.first_token(one, 0.0)
    for _ in range(30):
        attempt = bench.begin(a)
        bench.first_token(attempt, 0.05)
        bench.end(attempt, "ok")
    assert [event.reason for event in bench.sink.of(LimitChanged)] == ["drop", "recovered"]
    assert grown == sorted(grown)
    assert grown[-1] == bench.limits.of(a) > 10


def test_slow_readers_do_not_make_a_replica_look_slow() -> None:
    bench = Watched("a")
    (a,) = bench.fleet.replicas
    held = [bench.begin(a) for _ in range(9)]
    attempt = held[0]
    bench.first_token(attempt, 0.05)
    attempt.progress.pause()
    bench.clock.at += 60
    attempt.progress.resume()
    for _ in range(20):
        bench.clock.at += 0.04
        attempt.progress.tokens()
        attempt.tokens += 1
    before = bench.limits.of(a)
    bench.end(attempt, "ok")
    assert bench.limits.of(a) == before
    assert attempt.tpot_s == pytest.approx(0.04, rel=0.1)


def test_slow_output_is_seen_at_the_end() -> None:
    bench = Watched("a")
    (a,) = bench.fleet.replicas
    attempt, *_ = [bench.begin(a) for _ in range(9)]
    bench.first_token(attempt, 0.05)
    for _ in range(20):
        bench.clock.at += 0.4
        attempt.progress.tokens()
        attempt.tokens += 1
    bench.end(attempt, "ok")
    assert [event.reason for event in bench.sink.of(LimitChanged)] == ["tpot"]


def test_room_is_told_for_each_replica() -> None:
    bench = Watched("a", "b")
    a, b = bench.fleet.replicas
    bench.begin(a, sequences=10)
    assert not bench.limits.has_room(a)
    assert bench.limits.has_room(b)


def test_the_template_never_moves() -> None:
    limit = Limit(5)
    assert limit.sample(Sample(0, 5, Outcome.DROPPED), 1) == ""
    assert limit.value == 5
    with pytest.raises(ValueError, match="value"):
        Limit(0)


def test_no_replica_is_given_more_than_its_limit_while_another_has_room() -> None:
    bench = Watched("a", "b")
    a, b = bench.fleet.replicas
    balancer = WithinLimits(RoundRobin(), bench.limits)
    assert {balancer.pick([a, b]) for _ in range(2)} == {a, b}
    bench.begin(a, sequences=9)
    assert [balancer.pick([a, b], work=Work(1, 1, 2)) for _ in range(3)] == [b] * 3
    bench.begin(b, sequences=9)
    assert {balancer.pick([a, b], work=Work(1, 1, 2)) for _ in range(2)} == {a, b}, (
        "then it is as if there were none"
    )
