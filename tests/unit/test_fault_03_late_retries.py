"""Fault 3: "Retries outlive the request's own deadline; the per-attempt timeout resets a response that has begun"."""

from __future__ import annotations

import asyncio
import random

import pytest

from policies.call import Call
from policies.errors import AttemptTimeout, DeadlineExceeded, ReplicaLost
from policies.events import AttemptEnded, AttemptStarted
from policies.fleet import Fleet, Replica
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.timeouts import TimeoutSettings
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import now, run

PATIENT = ProfileSettings(timeouts=TimeoutSettings(header_s=3.0, first_token_s=3.0))


def surroundings(sink: Remembering) -> Surroundings:
    fleet = Fleet(Replica(f"r{n}") for n in range(3))
    return Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink)


async def hang(_: Call) -> None:
    await asyncio.sleep(1e6)


@pytest.mark.parametrize("profile", ["naive", "retry-only", "resilient"])
def test_no_attempt_begins_or_runs_after_the_deadline(profile: str) -> None:
    sink = Remembering()
    begun: list[float] = []

    async def replica(one: Call) -> None:
        begun.append(now())
        await hang(one)

    async def main() -> float:
        with pytest.raises(DeadlineExceeded):
            await build(profile, replica, surroundings(sink), PATIENT)(call(within_s=5.0))
        return now()

    assert run(main()) == pytest.approx(5.0)
    assert max(begun) < 5.0
    assert len(sink.of(AttemptStarted)) == len(sink.of(AttemptEnded)) == len(begun), "none is left running"
    assert len(begun) == (1 if profile == "naive" else 3)


def test_every_attempt_sees_what_is_left_and_not_what_there_was() -> None:
    left: list[float] = []

    async def replica(one: Call) -> str:
        left.append(one.deadline.remaining())
        if len(left) < 3:
            await asyncio.sleep(1.0)
            raise ReplicaLost("cut")
        return "answer"

    async def main() -> None:
        await build("resilient", replica, surroundings(Remembering()))(call(within_s=10.0))

    run(main())
    assert left[0] == pytest.approx(10.0)
    assert left[0] - left[1] >= 1.0
    assert left[1] - left[2] >= 1.0


async def long_but_well(one: Call) -> str:
    assert one.attempt is not None
    one.attempt.progress.headers()
    for _ in range(100):
        await asyncio.sleep(0.3)
        one.attempt.progress.tokens()
    return "answer"


def test_a_stream_that_makes_progress_is_never_reset_by_a_time_out_of_its_attempt() -> None:
    async def main() -> float:
        assert await build("resilient", long_but_well, surroundings(Remembering()))(call()) == "answer"
        return now()

    assert run(main()) == pytest.approx(30.0)


def test_what_most_deploy_resets_it_five_times_over() -> None:
    sink = Remembering()

    async def main() -> float:
        with pytest.raises(AttemptTimeout, match="the whole attempt took more than 2 s"):
            await build("retry-only", long_but_well, surroundings(sink))(call())
        return now()

    assert run(main()) == pytest.approx(10.0)
    assert len(sink.of(AttemptStarted)) == 5


def test_a_time_out_of_the_whole_attempt_and_those_of_silence_can_be_had_together() -> None:
    async def outcome(script: Script) -> str:
        knobs = ProfileSettings(max_attempts=1, timeouts=TimeoutSettings(attempt_s=4.0))
        with pytest.raises(AttemptTimeout) as caught:
            await build("resilient", script, surroundings(Remembering()), knobs)(call())
        return f"{now():g}: {caught.value}"

    assert run(outcome(Script(long_but_well))) == "4: the whole attempt took more than 4 s"
    assert run(outcome(Script(hang))) == "1: no response headers within 1 s"
