"""The breaker: when it opens, what it refuses, and how it closes again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from policies.breaker import Breaker, BreakerSettings, State, Verdict, judge
from policies.call import compose
from policies.errors import (
    BreakerOpen,
    CallRejected,
    DeadlineExceeded,
    NoReplica,
    PolicyError,
    ReplicaBusy,
    ReplicaFailed,
    ReplicaLost,
    ToolDeadline,
    ToolError,
    ToolRejected,
)
from policies.events import BreakerChanged
from policies.leases import Leases
from policies.window import OutcomeWindow
from tests.fakes.policy_bench import CLOCK, FixedClock, Remembering, Script, call
from tests.fakes.virtual_time import run


class Bench:
    """A breaker on a clock that stands still until it is moved."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.sink = FixedClock(), Remembering()
        settings.setdefault("jitter", 0.0)
        self.breaker = Breaker(
            "tool", BreakerSettings(**settings), clock=self.clock, rng=random.Random(1), sink=self.sink
        )

    def ended(self, verdict: Verdict, times: int = 1, took_s: float = 0.0) -> None:
        """Let calls through one after the other and end each with that verdict."""
        for _ in range(times):
            permit = self.breaker.permit()
            self.clock.at += took_s
            permit.close(verdict)

    def opened(self) -> Bench:
        self.ended(Verdict.BAD, 10)
        assert self.breaker.state is State.OPEN
        return self

    def states(self) -> list[str]:
        return [event.state for event in self.sink.of(BreakerChanged)]


def test_it_opens_at_the_share_of_failures_and_not_before_there_are_enough_calls() -> None:
    bench = Bench(minimum_calls=10, failure_ratio=0.5)
    bench.ended(Verdict.BAD, 5)
    bench.ended(Verdict.GOOD, 4)
    assert bench.breaker.state is State.CLOSED, "nine calls are too few"
    bench.ended(Verdict.GOOD, 1)
    assert bench.breaker.state is State.OPEN
    assert bench.sink.of(BreakerChanged) == [BreakerChanged("tool", "open", "5 of 10 calls failed")]


def test_a_share_below_the_ratio_never_opens_it() -> None:
    bench = Bench(failure_ratio=0.5)
    for _ in range(100):
        bench.ended(Verdict.GOOD, 3)
        bench.ended(Verdict.BAD, 2)
    assert bench.states() == []


def test_open_it_refuses_at_once_and_says_when_to_come_back() -> None:
    bench = Bench(open_s=2.0).opened()
    bench.clock.at += 0.5
    with pytest.raises(BreakerOpen) as caught:
        bench.breaker.permit()
    assert caught.value.retry_after_s == pytest.approx(1.5)
    assert "tool" in str(caught.value)


def test_good_probes_close_it() -> None:
    bench = Bench(good_probes=2).opened()
    bench.clock.at += 2.0
    bench.ended(Verdict.GOOD, 1)
    assert bench.breaker.state is State.HALF_OPEN
    bench.ended(Verdict.GOOD, 1)
    assert bench.states() == ["open", "half_open", "closed"]
    bench.ended(Verdict.BAD, 9)
    assert bench.breaker.state is State.CLOSED, "what was before is forgotten"


def test_a_bad_probe_opens_it_for_longer_each_time_up_to_a_limit() -> None:
    bench = Bench(open_s=2.0, max_open_s=10.0).opened()
    spans = []
    for _ in range(5):
        began_at = bench.clock.at
        while bench.breaker.state is State.OPEN:
            bench.clock.at += 0.25
        spans.append(bench.clock.at - began_at)
        bench.ended(Verdict.BAD)
    assert spans == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_after_it_was_well_for_long_it_opens_for_a_short_time_again() -> None:
    bench = Bench(open_s=2.0, good_probes=1).opened()
    for _ in range(3):
        bench.clock.at += 100.0
        bench.ended(Verdict.BAD)
    bench.clock.at += 100.0
    bench.ended(Verdict.GOOD)
    bench.clock.at += 100.0
    bench.ended(Verdict.GOOD)
    bench.ended(Verdict.BAD, 9)
    assert bench.breaker.state is State.OPEN
    bench.clock.at += 2.0
    assert bench.breaker.state is State.HALF_OPEN


def test_flapping_does_not_shorten_it() -> None:
    bench = Bench(open_s=2.0, good_probes=1).opened()
    bench.clock.at += 2.0
    bench.ended(Verdict.GOOD)
    bench.ended(Verdict.BAD, 10)
    bench.clock.at += 3.9
    assert bench.breaker.state is State.OPEN


def test_the_time_open_is_jittered() -> None:
    spans = set()
    for seed in range(20):
        breaker = Breaker(settings=BreakerSettings(jitter=0.2), clock=FixedClock(), rng=random.Random(seed))
        for _ in range(10):
            breaker.permit().close(Verdict.BAD)
        with pytest.raises(BreakerOpen) as caught:
            breaker.permit()
        spans.add(caught.value.retry_after_s)
    assert len(spans) == 20
    assert 1.6 <= min(spans) <= max(spans) <= 2.4


def test_slow_calls_open_it_though_each_is_answered() -> None:
    bench = Bench(slow_s=1.0, slow_ratio=0.8)
    bench.ended(Verdict.GOOD, 2, took_s=0.1)
    bench.ended(Verdict.GOOD, 7, took_s=1.5)
    assert bench.breaker.state is State.CLOSED
    bench.ended(Verdict.GOOD, 1, took_s=1.5)
    assert bench.breaker.state is State.OPEN
    assert "slow" in bench.sink.of(BreakerChanged)[0].reason
    bench.clock.at += 2.0
    bench.ended(Verdict.GOOD, 1, took_s=1.5)
    assert bench.breaker.state is State.OPEN, "a slow probe is a bad one"


@pytest.mark.parametrize("slow_s", [None, 1.0])
def test_who_gives_up_has_seen_a_slow_call_or_nothing(slow_s: float | None) -> None:
    bench = Bench(slow_s=slow_s)
    bench.ended(Verdict.ABANDONED, 30, took_s=0.5)
    assert bench.breaker.state is State.CLOSED
    bench.ended(Verdict.ABANDONED, 10, took_s=1.5)
    assert bench.breaker.state is (State.CLOSED if slow_s is None else State.OPEN)


def test_old_outcomes_do_not_count() -> None:
    bench = Bench(window_s=30.0)
    bench.ended(Verdict.BAD, 9)
    bench.clock.at += 31.0
    bench.ended(Verdict.BAD, 9)
    assert bench.breaker.state is State.CLOSED


def test_what_began_before_it_opened_has_no_say_in_whether_it_closes() -> None:
    bench = Bench(good_probes=1)
    early, late = bench.breaker.permit(), bench.breaker.permit()
    bench.opened()
    late.close(Verdict.BAD)
    bench.clock.at += 2.0
    assert bench.breaker.state is State.HALF_OPEN
    early.close(Verdict.GOOD)
    assert bench.breaker.state is State.HALF_OPEN


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Verdict.GOOD),
        (CallRejected("too long", status=400), Verdict.GOOD),
        (ToolRejected("no such symbol"), Verdict.GOOD),
        (ReplicaBusy("429"), Verdict.NEUTRAL),
        (NoReplica("nobody", retry_after_s=1), Verdict.NEUTRAL),
        (asyncio.CancelledError(), Verdict.ABANDONED),
        (DeadlineExceeded("late"), Verdict.ABANDONED),
        (KeyboardInterrupt(), Verdict.NEUTRAL),
        (ReplicaLost("cut"), Verdict.BAD),
        (ReplicaFailed("500"), Verdict.BAD),
        (ToolDeadline("late"), Verdict.BAD),
        (ToolError("no answer"), Verdict.BAD),
        (ValueError("foreign"), Verdict.BAD),
    ],
)
def test_what_an_ending_says_of_the_service(error: BaseException | None, verdict: Verdict) -> None:
    assert judge(error) is verdict


def test_it_goes_around_any_callable() -> None:
    async def main() -> tuple[int, str]:
        breaker, asked = Breaker(), 0

        async def fails() -> str:
            nonlocal asked
            asked += 1
            raise OSError("away")

        for _ in range(30):
            with pytest.raises((OSError, BreakerOpen)):
                await breaker.run(fails)
        await CLOCK.sleep(3)

        async def answers() -> str:
            return "answer"

        return asked, await breaker.run(answers)

    assert run(main()) == (10, "answer")


def test_it_is_a_policy_too() -> None:
    async def main() -> list[str]:
        script = Script(*(ReplicaLost("cut") for _ in range(10)))
        handler = compose([Breaker()], script)
        seen = []
        for _ in range(12):
            try:
                seen.append(await handler(call()))
            except PolicyError as error:
                seen.append(type(error).__name__)
        return seen

    assert run(main()) == ["ReplicaLost"] * 10 + ["BreakerOpen"] * 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("minimum_calls", 0),
        ("minimum_calls", 51),
        ("failure_ratio", 0.0),
        ("slow_ratio", 1.1),
        ("slow_s", 0.0),
        ("open_s", 0.0),
        ("max_open_s", 1.0),
        ("jitter", 1.0),
        ("probes", 0),
        ("lease_s", 0.0),
    ],
)
def test_settings_are_checked_when_they_are_made(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        BreakerSettings(**{field: value})  # type: ignore[arg-type]


# --- leases and window -----------------------------------------------------------------------------------


def test_a_lease_comes_back_by_hand_or_by_time_and_only_once() -> None:
    clock = FixedClock()
    leases = Leases(clock, most=2, lease_s=10.0)
    first, second = leases.take(), leases.take()
    assert first is not None
    assert second is not None
    assert leases.take() is None
    assert first.give_back() is True
    assert first.give_back() is False
    assert leases.free == 1
    clock.at = 9.0
    assert leases.next_free_in_s() == 0.0
    assert leases.take() is not None
    assert leases.next_free_in_s() == pytest.approx(1.0)
    clock.at = 10.0
    assert leases.free == 1, "the second was lost"
    assert second.give_back() is False
    with pytest.raises(ValueError, match="most"):
        Leases(clock, most=0)
    with pytest.raises(ValueError, match="lease_s"):
        Leases(clock, lease_s=0)


def test_a_window_keeps_the_last_and_the_recent() -> None:
    window = OutcomeWindow(most=4, age_s=10.0)
    assert window.bad_share == window.slow_share == 0.0
    for at, bad in enumerate([True, True, False, False, False]):
        window.add(float(at), bad=bad, slow=True)
    assert (len(window), window.bad, window.slow) == (4, 1, 4)
    window.forget(12.5)
    assert (len(window), window.bad) == (2, 0)
    window.clear()
    assert (len(window), window.bad, window.slow) == (0, 0, 0)
    with pytest.raises(ValueError, match="most"):
        OutcomeWindow(most=0, age_s=1.0)
