"""Fault 23: after the loss of a node its address black-holes: a connect without a timeout hangs every other request.

The whole pipeline on a virtual clock, under a load that two of three replicas can carry.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from policies.call import Call
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run

BLACK_FROM_S, UNTIL_S, CALLS_PER_S = 5.0, 15.0, 12.0
LATE_S = 0.75


@dataclass
class Found:
    """First tokens of the calls that arrived after the loss, in seconds."""

    first_tokens_s: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def late_share(self) -> float:
        late = sum(after_s > LATE_S for after_s in self.first_tokens_s) + self.failed
        return late / (len(self.first_tokens_s) + self.failed)


async def lose_one(seed: int, without: tuple[str, ...]) -> Found:
    rng, found = random.Random(seed), Found()
    fleet = Fleet(Replica(f"r{n}") for n in range(3))
    around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(seed), Remembering())

    async def replica(one: Call) -> float:
        assert one.attempt is not None
        black = one.attempt.replica is fleet.replicas[0]

        async def takes(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            if black and now() >= BLACK_FROM_S:
                await asyncio.sleep(1e6)

        await takes(0.01)
        one.attempt.progress.headers()
        await takes(0.06)
        one.attempt.progress.tokens()
        first_token_at = now()
        for _ in range(18):
            await takes(0.033)
            one.attempt.progress.tokens()
        return first_token_at

    pipeline = build("resilient", replica, around, without=without)

    async def client(number: int) -> None:
        arrived_at = now()
        try:
            first_token_at = await pipeline(call(str(number), within_s=10, work=Work(150, 19)))
        except Exception:
            found.failed += arrived_at >= BLACK_FROM_S
        else:
            if arrived_at >= BLACK_FROM_S:
                found.first_tokens_s.append(first_token_at - arrived_at)

    clients, number = [], 0
    while now() < UNTIL_S:
        clients.append(asyncio.ensure_future(client(number)))
        number += 1
        await asyncio.sleep(rng.expovariate(CALLS_PER_S))
    await asyncio.gather(*clients)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_it_costs_few_calls_their_first_token_in_time_and_none_its_answer(seed: int) -> None:
    found = run(lose_one(seed, ()))
    assert found.failed == 0
    assert len(found.first_tokens_s) >= 90
    assert found.late_share <= 0.05, "so that the 95th percentile stays where it was"


def test_without_ejection_the_black_address_swallows_call_after_call() -> None:
    found = run(lose_one(1, ("ejection",)))
    assert found.failed == 0, "each is answered in the end"
    assert found.late_share > 0.05


@pytest.mark.parametrize("seed", range(3))
def test_either_the_time_outs_or_the_stall_watch_is_enough(seed: int) -> None:
    assert run(lose_one(seed, ("timeouts",))).failed == 0
    assert run(lose_one(seed, ("stall_watch",))).failed == 0


@pytest.mark.parametrize("without", [("timeouts", "stall_watch"), ("retry",)])
def test_without_both_or_without_retries_calls_are_lost(without: tuple[str, ...]) -> None:
    assert run(lose_one(1, without)).failed > 0
