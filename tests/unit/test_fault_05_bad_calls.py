"""Fault 5: long prompts answered 400 open the breaker and take healthy workers out; 429/503 under load keeps it open
after the load is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from policies.breaker import Breaker, State
from policies.call import Call, compose
from policies.errors import AttemptError, BreakerOpen, CallRejected, ReplicaBusy, ReplicaFailed
from policies.events import Ejected
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import run


def too_long() -> AttemptError:
    return CallRejected("the prompt has 5000 tokens, the context 4096", status=400)


def no_room() -> AttemptError:
    return ReplicaBusy("503", retry_after_s=0.1)


@pytest.mark.parametrize("error", [too_long, no_room])
def test_they_take_no_replica_out(error: Callable[[], AttemptError]) -> None:
    async def main() -> tuple[int, list[Ejected]]:
        sink = Remembering()
        fleet = Fleet(Replica(f"r{n}", str(n)) for n in range(3))
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink)

        async def replica(one: Call) -> str:
            assert one.attempt is not None
            await asyncio.sleep(0.01)
            one.attempt.progress.headers()
            if one.payload == "bad":
                raise error()
            one.attempt.progress.tokens()
            return "answer"

        pipeline = build("resilient", replica, around)
        answered = 0
        for number in range(120):
            if number % 10:
                with pytest.raises(AttemptError):
                    await pipeline(call(str(number), within_s=30, payload="bad"))
            else:
                answered += await pipeline(call(str(number), within_s=30)) == "answer"
            await asyncio.sleep(0.05)
        assert len(pipeline.rotation()) == 3
        return answered, sink.of(Ejected)

    assert run(main()) == (12, [])


@pytest.mark.parametrize("error", [too_long, no_room])
def test_they_do_not_open_a_breaker(error: Callable[[], AttemptError]) -> None:
    async def main() -> State:
        breaker = Breaker()

        async def service(_: Call) -> None:
            raise error()

        for _ in range(200):
            with pytest.raises(AttemptError):
                await compose([breaker], service)(call())
        return breaker.state

    assert run(main()) is State.CLOSED


def test_a_breaker_that_opened_for_a_cause_closes_though_the_service_is_full_at_times() -> None:
    """A full service answers a probe with 503: that is no reason to open again, nor to stay half open for ever."""

    async def main() -> State:
        breaker, answers = Breaker(), ["bad"] * 10 + ["full", "good"] * 5

        async def service(_: Call) -> None:
            answer = answers.pop(0)
            if answer != "good":
                raise ReplicaFailed("500") if answer == "bad" else no_room()

        for _ in range(12):
            try:
                await compose([breaker], service)(call())
            except BreakerOpen as refused:
                await asyncio.sleep(refused.retry_after_s)
            except AttemptError:
                pass
        while len(answers) > 2:
            try:
                await compose([breaker], service)(call())
            except (AttemptError, BreakerOpen):
                await asyncio.sleep(0.1)
        return breaker.state

    assert run(main()) is State.CLOSED
