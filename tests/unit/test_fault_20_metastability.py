"""Fault 20: "Metastability: the trigger ends, the overload stays. Goodput must return within a bound after it".

Three modelled replicas are offered 0.8 of what they can do; then, for five seconds, nothing moves. No client
retries, so that whatever stays is the gateway's own doing.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import cache

import pytest

from policies.errors import PolicyError
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import RatePriors, Rates
from policies.work import Work, WorkLedger
from tests.fakes.model_replica import Engine, ModelReplicas
from tests.fakes.policy_bench import CLOCK, call
from tests.fakes.virtual_time import now, run

REPLICAS, SHARE, WITHIN_S = 3, 0.8, 15.0
WORK = Work(100, 10)
ENGINE = Engine(step_s=0.08)
STALL = (10.0, 15.0)
WATCHED_S = 65.0
"""How long the service is watched after the stall."""


@dataclass(frozen=True)
class Outcome:
    """What became of every call, in order of arrival, and what it cost."""

    calls: tuple[tuple[float, bool], ...]
    attempts: int

    def goodput(self, begin_s: float, end_s: float) -> float:
        """Return the share that was answered in time, of the calls that arrived in that interval."""
        answered = [ok for at, ok in self.calls if begin_s <= at < end_s]
        assert len(answered) >= 30, "too few to say"
        return sum(answered) / len(answered)


@cache
def run_through(
    profile: str, *extra: str, seed: int = 1, stall: tuple[float, float] = STALL, deaf: bool = False
) -> Outcome:
    """Offer the load to that profile, around a stall, and return what became of it."""
    calls: list[tuple[float, bool]] = []

    async def main() -> int:
        rng = random.Random(seed)
        fleet = Fleet(Replica(f"r{n}") for n in range(REPLICAS))
        rates = Rates(CLOCK, RatePriors(slots=ENGINE.slots, prefill_base_s=0.04, tpot_s=ENGINE.step_s))
        around = Surroundings(fleet, WorkLedger(), rates, CLOCK, rng)
        replicas = ModelReplicas(fleet, ENGINE, stall, deaf=deaf)
        pipeline = build(profile, replicas, around, extra=extra)

        async def client(number: int) -> None:
            one = call(str(number), within_s=WITHIN_S, work=WORK)
            arrived_at, ok = now(), True
            rates.arrived(one.work)
            try:
                await pipeline(one)
            except PolicyError:
                ok = False
            calls.append((arrived_at, ok))

        arrivals = random.Random(seed)
        per_s = SHARE * ENGINE.capacity_per_s(WORK.output_tokens, REPLICAS)
        async with asyncio.TaskGroup() as clients:
            number = 0
            while now() < STALL[1] + WATCHED_S:
                clients.create_task(client(number))
                await asyncio.sleep(arrivals.expovariate(per_s))
                number += 1
        return replicas.attempts

    attempts = run(main())
    return Outcome(tuple(sorted(calls)), attempts)


def windows(begin_s: float, end_s: float, by_s: float = 5.0) -> list[tuple[float, float]]:
    return [(begin_s + n * by_s, begin_s + (n + 1) * by_s) for n in range(int((end_s - begin_s) / by_s))]


@pytest.mark.parametrize("profile", ["naive", "retry-only", "resilient"])
def test_without_a_trigger_every_profile_carries_that_load(profile: str) -> None:
    outcome = run_through(profile, stall=(0.0, 0.0))
    assert outcome.goodput(0.0, STALL[1] + WATCHED_S) > 0.99
    assert outcome.attempts < 1.02 * len(outcome.calls)


@pytest.mark.parametrize("seed", [1, 2])
def test_eager_retries_without_a_budget_keep_the_overload_alive_long_after_the_stall(seed: int) -> None:
    outcome = run_through("retry-only", seed=seed)
    end_s = STALL[1]
    assert outcome.goodput(0.0, 5.0) > 0.99
    assert [outcome.goodput(*one) for one in windows(end_s, end_s + 60.0)] == pytest.approx(
        [0.0] * 12, abs=0.3
    )
    assert outcome.attempts > 4 * len(outcome.calls)


@pytest.mark.parametrize("deaf", [False, True], ids=["engines stall", "fronts are silent too"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_resilient_profile_is_back_within_a_few_seconds(seed: int, deaf: bool) -> None:
    outcome = run_through("resilient", seed=seed, deaf=deaf)
    begin_s = STALL[1] + 3.0
    assert all(outcome.goodput(*one) > 0.9 for one in windows(begin_s, begin_s + 60.0))
    assert outcome.goodput(begin_s, begin_s + 60.0) > 0.98
    assert outcome.attempts < 1.3 * len(outcome.calls)


def test_a_budget_alone_takes_the_storm_out_of_eager_retries() -> None:
    outcome = run_through("retry-only", "retry_budget")
    begin_s = STALL[1] + 5.0
    assert all(outcome.goodput(*one) > 0.9 for one in windows(begin_s, begin_s + 50.0))
    assert outcome.attempts < 1.3 * len(outcome.calls)
