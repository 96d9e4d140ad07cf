"""What holds for every input: budgets, bounds, deadlines, accounts."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.backoff import FullJitter
from policies.call import Call
from policies.errors import AttemptError, CallRejected, PolicyError, ReplicaBusy, ReplicaFailed, ReplicaLost
from policies.events import AttemptEnded, AttemptStarted, RetryScheduled
from policies.fleet import Fleet, Replica
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import LineFit, Rates
from policies.retry_budget import BudgetSettings, Hold, RetryBudget
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, FixedClock, Remembering, call
from tests.fakes.virtual_time import now, run

seconds = st.floats(0.0, 20.0, allow_nan=False)


@given(
    retry=st.integers(0, 200),
    base_s=st.floats(0.001, 5),
    cap_s=st.floats(0.001, 100),
    retry_after_s=st.none() | st.floats(0, 60),
    seed=st.integers(),
)
def test_backoff_stays_within_its_bounds(
    retry: int, base_s: float, cap_s: float, retry_after_s: float | None, seed: int
) -> None:
    backoff = FullJitter(base_s=base_s, throttled_base_s=base_s, cap_s=cap_s)
    delay_s = backoff.delay_s(retry, ReplicaBusy("busy", retry_after_s=retry_after_s), random.Random(seed))
    least = retry_after_s or 0.0
    assert least <= delay_s <= least + min(cap_s, base_s * 2.0 ** min(retry, 64)) + 1e-9


steps_of_a_budget = st.lists(
    st.one_of(
        st.tuples(st.just("deposit"), st.integers(0, 5000)),
        st.tuples(st.just("hold"), st.integers(0, 5000)),
        st.tuples(st.just("refund"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.integers(0, 30)),
    ),
    max_size=200,
)


@given(steps=steps_of_a_budget, ratio=st.floats(0, 1), reserve=st.floats(0, 5), burst=st.floats(1, 50))
def test_never_more_is_spent_than_was_earned(
    steps: list[tuple[str, int]], ratio: float, reserve: float, burst: float
) -> None:
    clock = FixedClock()
    settings_ = BudgetSettings(ratio=ratio, reserve_per_s=reserve, burst=burst, burst_tokens=10_000)
    budget = RetryBudget(clock, settings_)
    holds: list[tuple[Hold, int]] = []
    earned, earned_tokens = burst / 2, 5_000.0
    for what, amount in steps:
        if what == "deposit":
            budget.deposit(Work(amount, 0))
            earned += ratio
            earned_tokens += ratio * amount
        elif what == "hold":
            hold = budget.hold(Work(amount, 0))
            if hold is not None:
                holds.append((hold, amount))
        elif what == "refund" and holds:
            holds.pop(amount % len(holds))[0].refund()
        elif what == "wait":
            clock.at += amount
            earned += reserve * amount
            earned_tokens += settings_.reserve_tokens_per_s * amount
        assert len(holds) <= earned + 1e-6
        assert sum(tokens for _, tokens in holds) <= earned_tokens + 1e-6
        assert -1e-6 <= budget.balance <= burst + 1e-6


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["reserve", "tokens", "release"]), st.integers(0, 30), st.integers(0, 500)),
        max_size=150,
    )
)
def test_reservations_always_sum_to_what_is_in_flight(steps: list[tuple[str, int, int]]) -> None:
    ledger = WorkLedger()
    replicas = [Replica(str(n)) for n in range(3)]
    live: list[tuple[object, list[int]]] = []
    for what, which, amount in steps:
        if what == "reserve":
            work = Work(amount, which, sequences=1 + which % 3)
            live.append((ledger.reserve(replicas[which % 3], work), [amount, which]))
        elif live:
            reservation, left = live[which % len(live)]
            if what == "tokens":
                reservation.tokens(amount)  # type: ignore[attr-defined]
                left[:] = [0, max(0, left[1] - amount)]
            else:
                reservation.release()  # type: ignore[attr-defined]
                live.pop(which % len(live))
        assert ledger.total.tokens == sum(sum(left) for _, left in live)
        assert ledger.total.attempts == len(live) == sum(ledger.at(one).attempts for one in replicas)
    for reservation, _ in live:
        reservation.release()  # type: ignore[attr-defined]
    assert ledger.total.tokens == ledger.total.attempts == ledger.total.sequences == 0


@given(points=st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 1000)), max_size=200))
def test_a_line_fit_never_gives_a_negative_time(points: list[tuple[int, float]]) -> None:
    fit = LineFit(0.03, 0.0002, span=1024, weight=0.05)
    for x, y in points:
        fit.observe(x, y)
    assert fit.base >= 0
    assert fit.slope > 0


@dataclass(frozen=True)
class Step:
    """What one attempt does: waits, makes progress, waits again, and ends in one way or the other."""

    before_s: float
    tokens: int
    between_s: float
    ending: str


step = st.builds(
    Step,
    before_s=st.sampled_from([0.0, 0.01, 0.5, 2.0, 20.0]),
    tokens=st.integers(0, 3),
    between_s=st.sampled_from([0.0, 0.1, 3.0, 30.0]),
    ending=st.sampled_from(["ok", "lost", "failed", "busy", "rejected", "hang"]),
)


def ending_of(name: str) -> AttemptError:
    """Return a fresh error for the end of an attempt."""
    if name == "rejected":
        return CallRejected("400", status=400)
    if name == "busy":
        return ReplicaBusy("503", retry_after_s=1.0)
    return ReplicaFailed("500") if name == "failed" else ReplicaLost("cut")


@settings(deadline=None, max_examples=150)
@given(
    plan=st.lists(
        st.tuples(st.lists(step, min_size=1, max_size=4), st.floats(0.05, 20), st.none() | st.floats(0, 5)),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 2**32),
)
def test_the_whole_pipeline_keeps_its_promises(
    plan: list[tuple[list[Step], float, float | None]], seed: int
) -> None:
    """Calls that fail, stall, are cut and are cancelled at any moment: bounded, on time, and nothing left over."""
    sink = Remembering()

    async def main() -> None:
        around = Surroundings(
            Fleet(Replica(f"r{n}") for n in range(3)),
            WorkLedger(),
            Rates(CLOCK),
            CLOCK,
            random.Random(seed),
            sink,
        )

        async def replica(one: Call) -> str:
            steps: list[Step] = one.payload
            assert one.attempt is not None
            doing = steps[(one.attempt.number - 1) % len(steps)]
            await asyncio.sleep(doing.before_s)
            one.attempt.progress.headers()
            for _ in range(doing.tokens):
                await asyncio.sleep(doing.between_s)
                one.attempt.progress.tokens()
            if doing.ending == "hang":
                await asyncio.sleep(1e6)
            if doing.ending != "ok":
                raise ending_of(doing.ending)
            return "answer"

        pipeline = build("resilient", replica, around, ProfileSettings())

        async def client(
            number: int, steps: list[Step], within_s: float, leaves_after_s: float | None
        ) -> None:
            one = call(str(number), within_s=within_s, payload=steps)
            task = asyncio.ensure_future(pipeline(one))
            if leaves_after_s is not None:
                await asyncio.sleep(leaves_after_s)
                task.cancel()
            await asyncio.wait([task])
            assert now() <= within_s + 1e-6 or leaves_after_s is not None
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), PolicyError)

        await asyncio.gather(*(client(n, *entry) for n, entry in enumerate(plan)))
        assert (
            around.ledger.total.attempts == around.ledger.total.tokens == around.ledger.total.sequences == 0
        )

    run(main())
    started, ended = sink.of(AttemptStarted), sink.of(AttemptEnded)
    assert sorted((e.request_id, e.attempt) for e in started) == sorted(
        (e.request_id, e.attempt) for e in ended
    )
    assert all(event.attempt <= 3 for event in started)
    retries = [event for event in started if event.attempt > 1]
    assert len(retries) <= len(sink.of(RetryScheduled)) <= 20 + 0.2 * len(plan) + 1.0 * 20
    for before, after in _pairs(started):
        assert before.replica != after.replica, "a retry goes elsewhere"


def _pairs(started: list[AttemptStarted]) -> list[tuple[AttemptStarted, AttemptStarted]]:
    by_call: dict[str, list[AttemptStarted]] = {}
    for event in started:
        by_call.setdefault(event.request_id, []).append(event)
    return [pair for events in by_call.values() for pair in pairwise(events)]


def test_a_loop_in_which_nothing_can_happen_says_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer"):
        run(main())
