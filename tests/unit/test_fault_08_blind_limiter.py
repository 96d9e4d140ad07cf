"""Fault 8: A limiter blind to constant time-outs climbs to its maximum; a minimum-latency probe collapses the
limit and sheds a burst."""

from __future__ import annotations

import asyncio

import pytest

from policies.call import Call
from policies.limits import AimdLimit, Outcome, Sample
from policies.parts import ProfileSettings
from policies.progress import Reached
from policies.timeouts import TimeoutSettings
from policies.work import Work
from tests.fakes.batch_engine import BatchEngines
from tests.fakes.paced_fleet import PacedFleet
from tests.fakes.virtual_time import now, run


def test_nothing_but_time_outs_brings_the_limit_down_to_its_least() -> None:
    limit = AimdLimit(8)
    for second in range(60):
        limit.sample(Sample(float(second), 8, Outcome.DROPPED), float(second))
    assert limit.value == 1.0


@pytest.mark.parametrize("by_deadline", [False, True])
def test_a_fleet_that_only_times_out_is_given_less_and_less_and_recovers(by_deadline: bool) -> None:
    """By our own time-out, or by callers whose deadline cuts the wait: neither is a success, or no news."""
    engines = BatchEngines(8)
    frozen_until = 20.0

    async def handler(call: Call) -> str:
        if now() < frozen_until:
            assert call.attempt is not None
            call.attempt.progress.headers()
            await asyncio.sleep(3600)
        return await engines(call)

    async def main() -> PacedFleet:
        knobs = ProfileSettings(timeouts=TimeoutSettings(first_token_s=60.0 if by_deadline else 2.0))
        off = ["early_rejection", "ladder", "ejection", "stall_watch", "retry"]
        fleet = PacedFleet(handler=handler, knobs=knobs, without=off)
        await fleet.load(0.8, 60, work=Work(200, 15), within_s=2.0 if by_deadline else 30.0)
        fleet.assert_empty()
        return fleet

    fleet = run(main())
    frozen = [limit / 3 for at, limit in fleet.limits if 12 <= at < frozen_until]
    assert max(frozen) <= 3, "it does not climb: it falls"
    after = [limit / 3 for at, limit in fleet.limits if at >= frozen_until + 10]
    assert min(after) >= 6, "and a few seconds later it is back"
    assert fleet.became(since=frozen_until + 10)["ok"] >= 0.98 * sum(
        fleet.became(since=frozen_until + 10).values()
    )


def test_the_first_slow_samples_after_the_fastest_ever_do_not_collapse_it() -> None:
    """Limits that compare with the least latency ever seen take one lucky sample for the norm."""
    limit = AimdLimit(8)
    limit.sample(Sample(0.0, 10, ttft_ratio=0.01), 0.0)
    for number in range(200):
        at = 1 + number / 10
        limit.sample(Sample(at, round(limit.value), ttft_ratio=1.5), at)
    assert limit.value > 10


def test_a_calm_hour_with_slow_single_calls_does_not_shrink_what_the_next_burst_needs() -> None:
    limit = AimdLimit(8)
    for minute in range(60):
        limit.sample(Sample(60.0 * minute, 1, ttft_ratio=30.0), 60.0 * minute)
    assert limit.value == 10


def test_a_burst_after_calm_is_queued_not_shed() -> None:
    async def main() -> PacedFleet:
        fleet = PacedFleet()
        await fleet.load(0.2, 30)
        await fleet.load(3.0, 1.0)
        return fleet

    fleet = run(main())
    assert set(fleet.became()) == {"ok"}


def test_an_attempt_that_has_streamed_is_no_drop_when_its_caller_leaves() -> None:
    async def main() -> float:
        fleet = PacedFleet(replicas=1)
        streaming = asyncio.Event()

        class Told(BatchEngines):
            async def __call__(self, call: Call, /) -> str:
                assert call.attempt is not None
                call.attempt.progress.tokens()
                if call.attempt.progress.reached is Reached.FIRST_TOKEN:
                    streaming.set()
                await asyncio.sleep(3600)
                return ""

        fleet = PacedFleet(replicas=1, handler=Told(8))
        for _ in range(20):
            task = asyncio.create_task(fleet.pipeline(Call("c")))
            await streaming.wait()
            await asyncio.sleep(1.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            streaming.clear()
        return fleet.admission.limit

    assert run(main()) >= 10
