"""Retries: which errors, how often, where, when, and what stops them."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.backoff import FullJitter
from policies.call import Call, compose
from policies.errors import (
    AttemptError,
    AttemptTimeout,
    CallRejected,
    NoReplica,
    ReplicaBusy,
    ReplicaFailed,
    ReplicaLost,
)
from policies.events import RetryScheduled, RetrySuppressed
from policies.fleet import Replica
from policies.progress import Reached
from policies.retry import Retry
from policies.retry_budget import BudgetSettings, RetryBudget
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import now, run

A, B = Replica("a"), Replica("b")


def at(replica: Replica, error: AttemptError) -> AttemptError:
    error.replica = replica
    return error


def retry(sink: Remembering | None = None, **options: object) -> Retry:
    return Retry(rng=random.Random(1), sink=sink, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        ReplicaLost("cut", reached=Reached.NOTHING),
        ReplicaLost("cut", reached=Reached.HEADERS),
        AttemptTimeout("silent"),
        ReplicaFailed("500"),
        ReplicaBusy("503"),
    ],
)
def test_an_error_of_the_replica_is_tried_again(error: AttemptError) -> None:
    script = Script(error)
    assert run(compose([retry()], script)(call())) == "answer"
    assert [one.attempt_number for one in script.attempts] == [1, 2]


def test_what_the_replica_rejects_is_never_tried_again() -> None:
    script = Script(CallRejected("bad", status=400))
    with pytest.raises(CallRejected):
        run(compose([retry()], script)(call()))
    assert len(script.attempts) == 1


def test_nothing_is_tried_again_once_part_of_the_answer_was_delivered() -> None:
    async def deliver_and_fail(one: Call) -> None:
        one.delivery.started = True
        raise ReplicaLost("cut", reached=Reached.MID_STREAM)

    script = Script(deliver_and_fail)
    with pytest.raises(ReplicaLost):
        run(compose([retry()], script)(call()))
    assert len(script.attempts) == 1


def test_a_replica_lost_in_mid_stream_is_tried_again_while_nothing_was_delivered() -> None:
    script = Script(ReplicaLost("cut", reached=Reached.MID_STREAM))
    assert run(compose([retry()], script)(call())) == "answer"


def test_a_call_with_side_effects_is_never_tried_again() -> None:
    script = Script(ReplicaLost("cut"))
    with pytest.raises(ReplicaLost):
        run(compose([retry()], script)(call(idempotent=False)))
    assert len(script.attempts) == 1


def test_there_are_at_most_max_attempts_and_the_last_error_is_raised() -> None:
    sink = Remembering()
    script = Script(*(ReplicaLost(f"cut {n}") for n in range(5)))
    with pytest.raises(ReplicaLost, match="cut 2") as caught:
        run(compose([retry(sink, max_attempts=3)], script)(call()))
    assert len(script.attempts) == 3
    assert caught.value.attempts == 3
    assert sink.of(RetrySuppressed)[0].reason == "attempts"


def test_an_attempt_is_told_which_replicas_have_failed_this_call() -> None:
    script = Script(at(A, ReplicaLost("cut")), at(B, ReplicaLost("cut")))
    run(compose([retry()], script)(call()))
    assert [one.attempt.avoid for one in script.attempts if one.attempt] == [(), (A,), (A, B)]


def test_where_no_replica_is_left_the_error_is_that_of_the_attempt() -> None:
    sink = Remembering()
    script = Script(ReplicaLost("cut"), NoReplica("none", retry_after_s=1))
    with pytest.raises(ReplicaLost):
        run(compose([retry(sink)], script)(call()))
    assert sink.of(RetrySuppressed)[0].reason == "replica"


def test_no_replica_at_the_first_attempt_is_not_tried_again() -> None:
    script = Script(NoReplica("none", retry_after_s=1))
    with pytest.raises(NoReplica):
        run(compose([retry()], script)(call()))
    assert len(script.attempts) == 1


def test_a_retry_is_never_begun_after_the_deadline() -> None:
    sink = Remembering()

    async def main() -> float:
        script = Script(ReplicaBusy("busy", retry_after_s=5.0))
        with pytest.raises(ReplicaBusy):
            await compose([retry(sink)], script)(call(within_s=2.0))
        assert len(script.attempts) == 1
        return now()

    assert run(main()) == 0.0, "it gives up at once instead of sleeping up to the deadline"
    assert sink.of(RetrySuppressed)[0].reason == "deadline"


def test_retry_after_is_waited_for() -> None:
    async def main() -> float:
        await compose([retry()], Script(ReplicaBusy("busy", retry_after_s=2.0)))(call())
        return now()

    assert 2.0 <= run(main()) <= 2.1


def test_without_retry_after_throttling_backs_off_longer_than_a_lost_connection() -> None:
    rng = random.Random(3)
    backoff = FullJitter()
    lost = max(backoff.delay_s(0, ReplicaLost("x"), rng) for _ in range(200))
    busy = max(backoff.delay_s(0, ReplicaBusy("x"), rng) for _ in range(200))
    assert lost <= 0.05
    assert 0.5 < busy <= 1.0


def test_an_exhausted_budget_suppresses_the_retry_and_nothing_else() -> None:
    sink = Remembering()

    async def main() -> None:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0, burst=4))
        handler = compose([retry(sink, budget=budget)], Script(*(ReplicaLost("cut") for _ in range(2)), *[]))
        assert await handler(call()) == "answer"
        failing = compose([retry(sink, budget=budget)], Script(ReplicaLost("cut")))
        with pytest.raises(ReplicaLost):
            await failing(call())
        assert await compose([retry(sink, budget=budget)], Script())(call()) == "answer"

    run(main())
    assert [event.reason for event in sink.of(RetrySuppressed)] == ["budget"]
    assert len(sink.of(RetryScheduled)) == 2


def test_budget_is_held_before_the_sleep_so_that_sleepers_do_not_fire_together() -> None:
    """A thousand calls fail at the same instant; were the budget taken after the backoff, all would retry."""
    sink = Remembering()

    async def main() -> int:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0, burst=20))
        policy = Retry(budget=budget, rng=random.Random(5), sink=sink)
        scripts = [Script(ReplicaLost("cut"), ReplicaLost("cut"), ReplicaLost("cut")) for _ in range(1000)]
        calls = (compose([policy], script)(call(str(n))) for n, script in enumerate(scripts))
        await asyncio.gather(*calls, return_exceptions=True)
        return sum(len(script.attempts) for script in scripts)

    assert run(main()) == 1000 + 10


def test_a_retry_that_was_cancelled_in_its_sleep_gives_its_budget_back() -> None:
    async def main() -> tuple[float, float]:
        budget = RetryBudget(CLOCK, BudgetSettings(ratio=0, reserve_per_s=0))
        before = budget.balance
        script = Script(ReplicaBusy("busy", retry_after_s=60.0))
        task = asyncio.ensure_future(compose([retry(budget=budget)], script)(call()))
        await asyncio.sleep(1)
        assert budget.balance == before - 1
        task.cancel()
        await asyncio.wait([task])
        return before, budget.balance

    before, after = run(main())
    assert after == before


@pytest.mark.parametrize("value", [0, -1])
def test_arguments_are_checked_when_it_is_made(value: int) -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        Retry(max_attempts=value)
    with pytest.raises(ValueError, match="base_s"):
        FullJitter(base_s=value)
    with pytest.raises(ValueError, match="burst"):
        BudgetSettings(burst=value)
