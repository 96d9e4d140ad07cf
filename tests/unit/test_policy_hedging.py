"""Hedges: when a second attempt is sent, who wins, and that the loser never gets a word in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from policies.call import Attempt, Call, compose
from policies.errors import AttemptError, CallRejected, DeadlineExceeded, NoReplica, PolicyError, ReplicaLost
from policies.events import Hedged, Wasted
from policies.fleet import Replica
from policies.hedging import Hedging, HedgingSettings
from policies.progress import Reached
from policies.quantiles import RecentQuantile
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.timeouts import DeadlineGuard
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run

USUAL_S = 0.2


@dataclass
class Lane:
    """What one attempt does: its first token after ``first_s``, its end ``rest_s`` later, or an error then."""

    first_s: float = USUAL_S
    rest_s: float = 0.0
    error: BaseException | None = None
    early: bool = False
    """The error comes instead of the first token."""


@dataclass
class Stage:
    """Handler and audience: attempt number n follows ``lanes[n - 1]`` and writes what it has into ``heard``."""

    lanes: tuple[Lane, ...]
    heard: list[int] = field(default_factory=list)
    begun: list[tuple[int, float]] = field(default_factory=list)
    ended: list[tuple[int, str]] = field(default_factory=list)

    async def __call__(self, one: Call, /) -> int:
        assert one.attempt is not None
        number, progress = one.attempt.number, one.attempt.progress
        lane = self.lanes[number - 1]
        self.begun.append((number, now()))
        how = "cancelled"
        try:
            await asyncio.sleep(lane.first_s)
            progress.headers()
            if lane.error is not None and lane.early:
                how = "failed"
                raise lane.error
            progress.tokens()
            self.heard.append(number)
            await asyncio.sleep(lane.rest_s)
            progress.tokens()
            self.heard.append(number)
            if lane.error is not None:
                how = "failed"
                raise lane.error
            how = "ok"
            return number
        finally:
            self.ended.append((number, how))


def taught(policy: Hedging, service_class: str = "", usual_s: float = USUAL_S) -> Hedging:
    """Return the policy with enough seen to know that class's time to first token."""
    for _ in range(20):
        policy._ttft.observe(service_class, usual_s)
    return policy


async def answered(
    stage: Stage, policy: Hedging | None = None, one: Call | None = None
) -> tuple[int | BaseException, float]:
    began_at = now()
    try:
        answer: int | BaseException = await compose([policy or taught(Hedging())], stage)(one or call())
    except PolicyError as error:
        answer = error
    return answer, now() - began_at


def test_nothing_is_hedged_before_it_is_known_what_is_usual() -> None:
    async def main() -> None:
        policy = Hedging(HedgingSettings(least_samples=3))
        for number in range(3):
            stage = Stage((Lane(5.0), Lane(0.1)))
            assert await answered(stage, policy) == (1, pytest.approx(5.0)), number
        stage = Stage((Lane(60.0), Lane(0.1)))
        assert await answered(stage, policy) == (2, pytest.approx(5.1)), "three have been seen"

    run(main())


def test_a_late_first_token_is_hedged_after_the_usual_time_and_the_faster_answers() -> None:
    async def main() -> None:
        sink = Remembering()
        stage = Stage((Lane(60.0), Lane(0.1, rest_s=1.0)))
        assert await answered(stage, taught(Hedging(sink=sink))) == (2, pytest.approx(1.3))
        assert stage.begun == [(1, 0.0), (2, pytest.approx(0.2))]
        assert stage.heard == [2, 2]
        assert sorted(stage.ended) == [(1, "cancelled"), (2, "ok")]
        assert sink.events == [Hedged("c", 2, pytest.approx(0.2)), Wasted("c", 100, 0)]

    run(main())


def test_the_first_wins_when_its_token_comes_first_however_late_its_end() -> None:
    async def main() -> None:
        stage = Stage((Lane(0.5, rest_s=30.0), Lane(0.4, rest_s=0.0)))
        assert await answered(stage) == (1, pytest.approx(30.5))
        assert stage.heard == [1, 1]
        assert stage.ended == [(2, "cancelled"), (1, "ok")]

    run(main())


def test_what_is_in_time_is_not_hedged() -> None:
    async def main() -> None:
        stage = Stage((Lane(0.19, rest_s=30.0),))
        assert await answered(stage) == (1, pytest.approx(30.19))

    run(main())


@pytest.mark.parametrize(
    "change",
    [
        {"idempotent": False},
        {"tools": True},
        {"attempt": 2},
        {"service_class": "another, of which nothing is known"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_must_not_be_hedged_is_not(change: dict[str, Any]) -> None:
    async def main() -> None:
        stage = Stage((Lane(60.0), Lane(60.0)))
        fields = {**change, "attempt": Attempt(2)} if "attempt" in change else change
        _, took_s = await answered(stage, one=call(**fields))
        assert took_s == pytest.approx(60.0)
        assert len(stage.begun) == 1

    run(main())


def test_what_has_been_delivered_in_part_is_not_hedged() -> None:
    async def main() -> None:
        one = call()
        one.delivery.started = True
        stage = Stage((Lane(60.0), Lane(0.1)))
        assert await answered(stage, one=one) == (1, pytest.approx(60.0))

    run(main())


def test_only_the_budget_allows_a_hedge_and_one_that_was_not_needed_costs_nothing() -> None:
    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0, burst=4))
        policy = taught(Hedging(budget=budget))
        assert (await answered(Stage((Lane(0.1),)), policy))[0] == 1
        assert budget.balance == 2
        for left in (1, 0):
            assert (await answered(Stage((Lane(60.0), Lane(0.1))), policy))[0] == 2
            assert budget.balance == left
        assert (await answered(Stage((Lane(3.0), Lane(0.1))), policy))[0] == 1, "the budget is empty"

    run(main())


def test_alone_it_can_earn_its_own_budget() -> None:
    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0.1, reserve_per_s=0, burst=2))
        policy = taught(Hedging(budget=budget, deposits=True))
        assert (await answered(Stage((Lane(60.0), Lane(0.1))), policy))[0] == 2
        for _ in range(10):
            await answered(Stage((Lane(0.1),)), policy)
        assert (await answered(Stage((Lane(60.0), Lane(0.1))), policy))[0] == 2

    run(main())


@pytest.mark.parametrize(("first_fails", "second_fails"), [(True, False), (False, True)])
def test_one_failure_leaves_it_to_the_other(first_fails: bool, second_fails: bool) -> None:
    lost = ReplicaLost("cut")

    async def main() -> None:
        first = Lane(1.0, error=lost, early=True) if first_fails else Lane(3.0)
        second = Lane(0.1, error=lost, early=True) if second_fails else Lane(3.0)
        answer, _ = await answered(Stage((first, second)))
        assert answer == (2 if first_fails else 1)

    run(main())


def test_two_failures_are_one_error_that_names_both_replicas() -> None:
    def lost(name: str) -> ReplicaLost:
        error = ReplicaLost(f"{name} was cut")
        error.replica = Replica(name)
        return error

    async def main() -> None:
        stage = Stage((Lane(1.0, error=lost("a"), early=True), Lane(5.0, error=lost("b"), early=True)))
        error, took_s = await answered(stage)
        assert isinstance(error, AttemptError)
        assert (str(error), [one.name for one in error.beside]) == ("b was cut", ["a"])
        assert took_s == pytest.approx(5.2)

    run(main())


def test_a_failure_before_the_hedge_is_the_business_of_retry() -> None:
    async def main() -> None:
        stage = Stage((Lane(0.1, error=ReplicaLost("cut"), early=True),))
        error, took_s = await answered(stage)
        assert isinstance(error, ReplicaLost)
        assert took_s == pytest.approx(0.1)

    run(main())


def test_the_winner_may_still_fail_in_mid_stream() -> None:
    async def main() -> None:
        stage = Stage((Lane(60.0), Lane(0.1, rest_s=1.0, error=ReplicaLost("cut"))))
        error, _ = await answered(stage)
        assert isinstance(error, ReplicaLost)
        assert stage.heard == [2, 2]

    run(main())


def test_an_error_counts_both_attempts_where_nobody_retries() -> None:
    """Found by the simulation: with retries switched off, the error of a hedged call spoke of one attempt."""

    async def main() -> int:
        stage = Stage((Lane(1.0, 1.0, ReplicaLost("cut")), Lane(5.0)))
        error, _ = await answered(stage)
        assert isinstance(error, ReplicaLost)
        assert [number for number, _ in stage.begun] == [1, 2]
        return error.attempts

    assert run(main()) == 2


def test_what_is_wrong_with_the_call_itself_ends_both_at_once() -> None:
    async def main() -> None:
        rejected = CallRejected("bad", status=400)
        stage = Stage((Lane(60.0), Lane(0.1, error=rejected, early=True)))
        assert await answered(stage) == (rejected, pytest.approx(0.3))
        assert stage.ended == [(2, "failed"), (1, "cancelled")]

    run(main())


def test_a_hedge_for_which_no_replica_is_left_is_not_paid_for() -> None:
    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0))
        one = call()

        async def alone(asked: Call) -> str:
            assert asked.attempt is not None
            if asked.attempt.number == 2:
                raise NoReplica("none", retry_after_s=1)
            await asyncio.sleep(5.0)
            return "answer"

        assert await compose([taught(Hedging(budget=budget))], alone)(one) == "answer"
        assert budget.balance == 20
        assert one.delivery.attempts == 1

    run(main())


def test_an_answer_without_a_word_about_tokens_is_raced_to_its_end() -> None:
    async def silent(one: Call) -> int:
        assert one.attempt is not None
        await asyncio.sleep(60.0 if one.attempt.number == 1 else 0.1)
        return one.attempt.number

    async def main() -> None:
        assert await compose([taught(Hedging())], silent)(call()) == 2
        assert now() == pytest.approx(0.3)

    run(main())


def test_a_loser_that_cannot_be_cancelled_still_gets_no_word_in() -> None:
    heard: list[int] = []

    async def stubborn(one: Call) -> str:
        assert one.attempt is not None
        number = one.attempt.number
        try:
            await asyncio.sleep(5.0 if number == 1 else 0.5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)  # swallows the cancellation and goes on
        one.attempt.progress.tokens()
        heard.append(number)
        await asyncio.sleep(1.0)
        return f"attempt {number}"

    async def main() -> None:
        assert await compose([taught(Hedging())], stubborn)(call()) == "attempt 2"
        assert heard == [2]

    run(main())


def test_two_first_tokens_in_the_same_turn_of_the_loop_have_one_winner() -> None:
    async def main() -> None:
        both = asyncio.Event()
        heard: list[int] = []

        async def handler(one: Call) -> int:
            assert one.attempt is not None
            await both.wait()
            one.attempt.progress.tokens()
            heard.append(one.attempt.number)
            await asyncio.sleep(0.1)
            return one.attempt.number

        asyncio.get_running_loop().call_later(1.0, both.set)
        assert await compose([taught(Hedging())], handler)(call()) == 1
        assert heard == [1]

    run(main())


@pytest.mark.parametrize("leaves_after_s", [0.0, 0.1, 0.25, 0.35, 0.8])
def test_a_caller_that_leaves_ends_both_attempts(leaves_after_s: float) -> None:
    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0))
        stage = Stage((Lane(60.0), Lane(0.1, rest_s=60.0)))
        before = len(asyncio.all_tasks())
        task = asyncio.ensure_future(compose([taught(Hedging(budget=budget))], stage)(call()))
        await asyncio.sleep(leaves_after_s)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert len(stage.begun) == len(stage.ended)
        assert {how for _, how in stage.ended} <= {"cancelled"}
        assert len(asyncio.all_tasks()) == before
        assert budget.balance == (20 if len(stage.begun) < 2 else 19)

    run(main())


def test_the_deadline_ends_both_attempts() -> None:
    async def main() -> None:
        stage = Stage((Lane(60.0), Lane(60.0)))
        with pytest.raises(DeadlineExceeded):
            await compose([DeadlineGuard(), taught(Hedging())], stage)(call(within_s=2.0))
        assert sorted(stage.ended) == [(1, "cancelled"), (2, "cancelled")]

    run(main())


def test_the_callers_own_listener_hears_the_winner_only() -> None:
    heard: list[tuple[Reached, int]] = []

    async def main() -> None:
        stage = Stage((Lane(60.0), Lane(0.1)))
        one = call(attempt=Attempt(listener=lambda reached, tokens: heard.append((reached, tokens))))
        assert (await answered(stage, one=one))[0] == 2

    run(main())
    assert heard == [(Reached.HEADERS, 0), (Reached.FIRST_TOKEN, 1), (Reached.MID_STREAM, 1)]


def test_each_class_has_its_own_usual_time_and_strangers_cannot_fill_the_memory() -> None:
    policy = taught(taught(Hedging(), "chat", 0.3), "batch", 4.0)
    assert (policy.after_s("chat"), policy.after_s("batch"), policy.after_s("new")) == (0.3, 4.0, None)
    for number in range(1000):
        policy._ttft.observe(f"class-{number}", 1.0)
    assert len(policy._ttft) == 32


def test_a_quantile_follows_the_latest_values_only() -> None:
    recent = RecentQuantile(0.95, window=100, least=20)
    for number in range(19):
        recent.observe("a", number / 100)
    assert recent.of("a") is None
    for number in range(19, 100):
        recent.observe("a", number / 100)
    assert recent.of("a") == pytest.approx(0.95)
    for _ in range(100):
        recent.observe("a", 7.0)
    assert recent.of("a") == 7.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HedgingSettings(quantile=1.0), "quantile is 1.0"),
        (lambda: HedgingSettings(least_s=0), "least_s is 0"),
        (lambda: HedgingSettings(window=10, least_samples=11), "least=11"),
        (lambda: Hedging(max_attempts=0), "max_attempts is 0"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_it_takes_the_tail_off_for_a_few_per_cent_of_the_work() -> None:
    """Of the attempts 2 % are slow by 2 s, at random: the figures in docs/policies/hedging.md."""

    async def run_through(hedged: bool) -> tuple[list[float], int]:
        rng = random.Random(3)
        attempts, ttft_s = 0, []

        async def replica(one: Call) -> None:
            nonlocal attempts
            assert one.attempt is not None
            attempts += 1
            await asyncio.sleep(rng.lognormvariate(-1.9, 0.3) + 2.0 * (rng.random() < 0.02))
            one.attempt.progress.tokens()

        policies = [Hedging(budget=RetryBudget(CLOCK), deposits=True)] if hedged else []
        handler = compose(policies, replica)
        for number in range(4000):
            began_at = now()
            await handler(call(str(number), attempt=Attempt()))
            ttft_s.append(now() - began_at)
        return sorted(ttft_s), attempts

    plain, _ = run(run_through(hedged=False))
    hedged, attempts = run(run_through(hedged=True))
    print(
        f"p99 {plain[3960]:.2f} s without, {hedged[3960]:.2f} s with; {attempts / 40 - 100:.1f} % more attempts"
    )
    assert plain[3960] > 2.0
    assert hedged[3960] < 0.6
    assert attempts < 4000 * 1.08
