"""Retries and hedges together, at any interleaving: attempts, deadline and budget hold, and nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.call import Call
from policies.errors import AttemptError, CallRejected, PolicyError, ReplicaBusy, ReplicaLost
from policies.events import AttemptEnded, AttemptStarted, Hedged
from policies.fleet import Fleet, Replica
from policies.hedging import HedgingSettings
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.retry_budget import BudgetSettings
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run

MAX_ATTEMPTS = 3
LASTED_S = 25.0
"""No run lasts longer."""


@dataclass(frozen=True)
class Doing:
    """What one attempt does: headers, then a first token after ``first_s``, then its ending ``rest_s`` later."""

    first_s: float
    rest_s: float
    ending: str
    begins: bool
    """Whether it gives a token before its ending."""


doing = st.builds(
    Doing,
    first_s=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0, 4.0]),
    rest_s=st.sampled_from([0.0, 0.1, 2.0]),
    ending=st.sampled_from(["ok", "lost", "lost", "busy", "rejected", "hang"]),
    begins=st.booleans(),
)


@dataclass(frozen=True)
class Asking:
    """One call: when it arrives, what its attempts do, how long its client waits, and what may be done for it."""

    at_s: float
    attempts: tuple[Doing, ...]
    within_s: float
    leaves_after_s: float | None
    work: Work
    idempotent: bool = True
    tools: bool = False


asking = st.builds(
    Asking,
    at_s=st.floats(0.2, 5),
    attempts=st.lists(doing, min_size=1, max_size=3).map(tuple),
    within_s=st.floats(0.05, 15),
    leaves_after_s=st.none() | st.floats(0, 5),
    work=st.builds(Work, st.sampled_from([0, 100, 3000]), st.sampled_from([1, 100, 800])),
    idempotent=st.sampled_from([True, True, True, False]),
    tools=st.sampled_from([True, False, False, False]),
)

TEACHING = Asking(0.0, (Doing(0.1, 0.0, "ok", begins=True),), 10.0, None, Work(1, 1))
"""After some of these it is known what is usual, and what is late."""

budgets = st.builds(
    BudgetSettings,
    ratio=st.sampled_from([0.0, 0.1, 0.5]),
    reserve_per_s=st.sampled_from([0.0, 1.0]),
    burst=st.sampled_from([2.0, 6.0, 40.0]),
    burst_tokens=st.sampled_from([1000.0, 40_000.0]),
    burst_output_tokens=st.sampled_from([300.0, 16_000.0]),
    reserve_tokens_per_s=st.sampled_from([0.0, 500.0]),
    reserve_output_tokens_per_s=st.sampled_from([0.0, 100.0]),
)


class World:
    """Replicas, clients, and the account of what was heard and spent."""

    def __init__(self, budget: BudgetSettings, seed: int) -> None:
        self.budget = budget
        self.sink = Remembering()
        self.heard: defaultdict[str, set[int]] = defaultdict(set)
        self.begun_late: list[str] = []
        self.open = 0
        self.rng = random.Random(seed)

    async def replica(self, one: Call) -> str:
        asked: Asking = one.payload
        assert one.attempt is not None
        if one.deadline.remaining() <= 0:
            self.begun_late.append(one.request_id)
        todo = asked.attempts[(one.attempt.number - 1) % len(asked.attempts)]
        self.open += 1
        try:
            one.attempt.progress.headers()
            await asyncio.sleep(todo.first_s)
            if todo.begins:
                one.attempt.progress.tokens()
                self.heard[one.request_id].add(one.attempt.number)
                one.delivery.started = True
                await asyncio.sleep(todo.rest_s)
                one.attempt.progress.tokens()
            await self._end(todo.ending)
            return "answer"
        finally:
            self.open -= 1

    async def _end(self, ending: str) -> None:
        if ending == "hang":
            await asyncio.sleep(1e6)
        errors: dict[str, AttemptError] = {
            "lost": ReplicaLost("cut"),
            "busy": ReplicaBusy("503", retry_after_s=0.5),
            "rejected": CallRejected("400", status=400),
        }
        if ending in errors:
            raise errors[ending]

    async def live(self, plan: list[Asking]) -> None:
        fleet = Fleet(Replica(f"r{n}") for n in range(3))
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, self.rng, self.sink)
        knobs = ProfileSettings(
            max_attempts=MAX_ATTEMPTS,
            budget=self.budget,
            hedging=HedgingSettings(quantile=0.5, least_samples=1),
        )
        extra = ["retry", "retry_budget", "hedging", "timeouts"]
        pipeline = build("naive", self.replica, around, knobs, extra=extra)

        async def client(number: int, asked: Asking) -> None:
            await asyncio.sleep(asked.at_s)
            one = call(
                str(number),
                within_s=asked.within_s,
                work=asked.work,
                payload=asked,
                idempotent=asked.idempotent,
                tools=asked.tools,
            )
            began_at = now()
            task = asyncio.ensure_future(pipeline(one))
            if asked.leaves_after_s is not None:
                asyncio.get_running_loop().call_later(asked.leaves_after_s, task.cancel)
            await asyncio.wait([task])
            assert now() <= began_at + asked.within_s + 1e-6
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), PolicyError)

        before = asyncio.all_tasks()
        async with asyncio.TaskGroup() as clients:
            for number, asked in enumerate(plan):
                clients.create_task(client(number, asked))
        assert asyncio.all_tasks() == before
        assert self.open == 0
        assert around.ledger.total.attempts == around.ledger.total.tokens == 0


@settings(deadline=None, max_examples=150)
@given(plan=st.lists(asking, min_size=1, max_size=20), budget=budgets, seed=st.integers(0, 2**32))
def test_whatever_is_repeated_stays_within_attempts_deadline_and_budget(
    plan: list[Asking], budget: BudgetSettings, seed: int
) -> None:
    world = World(budget, seed)
    plan = [TEACHING] * 3 + plan
    run(world.live(plan))
    started = world.sink.of(AttemptStarted)
    keys = Counter((one.request_id, one.attempt) for one in started)
    assert keys == Counter((one.request_id, one.attempt) for one in world.sink.of(AttemptEnded))
    assert set(keys.values()) <= {1}, "an attempt's number is its own"
    assert all(one.attempt <= MAX_ATTEMPTS for one in started)
    assert not world.begun_late
    assert all(len(numbers) == 1 for numbers in world.heard.values()), "a client hears one attempt only"

    again = [one for one in started if one.attempt > 1]
    assert all(plan[int(one.request_id)].idempotent for one in again)
    assert not any(plan[int(one.request_id)].tools for one in world.sink.of(Hedged))
    first = [plan[int(one.request_id)].work for one in started if one.attempt == 1]
    works = [plan[int(one.request_id)].work for one in again]
    assert len(again) <= budget.burst / 2 + budget.ratio * len(first) + budget.reserve_per_s * LASTED_S
    for spent, earned, burst, per_s in (
        (
            sum(work.prompt_tokens for work in works),
            sum(work.prompt_tokens for work in first),
            budget.burst_tokens,
            budget.reserve_tokens_per_s,
        ),
        (
            sum(work.output_tokens for work in works),
            sum(work.output_tokens for work in first),
            budget.burst_output_tokens,
            budget.reserve_output_tokens_per_s,
        ),
    ):
        assert spent <= burst / 2 + budget.ratio * earned + per_s * LASTED_S + 1e-6
