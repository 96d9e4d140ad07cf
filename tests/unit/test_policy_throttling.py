"""Throttling on the side of the client: how much it turns away, what counts, and that it finds back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from policies.call import compose
from policies.errors import (
    AttemptTimeout,
    CallRejected,
    Overloaded,
    PolicyError,
    ReplicaBusy,
    ReplicaFailed,
    ReplicaLost,
    Throttled,
)
from policies.events import Refused
from policies.throttling import ClientThrottling, ThrottlingSettings
from tests.fakes.policy_bench import Remembering, Script, call
from tests.fakes.virtual_time import run


def throttling(sink: Remembering | None = None, **settings: float) -> ClientThrottling:
    return ClientThrottling(ThrottlingSettings(**settings), rng=random.Random(4), sink=sink)  # type: ignore[arg-type]


async def send(policy: ClientThrottling, *steps: BaseException | None) -> list[str]:
    """Return what became of one call a step, in order."""
    outcomes = []
    for step in steps:
        script = Script(*([] if step is None else [step]))
        try:
            await compose([policy], script)(call())
            outcomes.append("ok")
        except PolicyError as error:
            outcomes.append(type(error).__name__)
    return outcomes


def test_a_service_that_accepts_half_is_not_throttled() -> None:
    async def main() -> None:
        policy = throttling()
        steps = [None, ReplicaBusy("503")] * 100
        assert "Throttled" not in await send(policy, *steps)
        assert policy.rejection_probability() == 0

    run(main())


@pytest.mark.parametrize(("accepts", "expected"), [(0, 0.95), (10, (100 - 20) / 101), (50, 0.0)])
def test_the_probability_is_that_of_the_book_up_to_its_cap(accepts: int, expected: float) -> None:
    async def main() -> None:
        policy = throttling()
        for number in range(100):
            policy._count(accepted=number < accepts)
        assert policy.rejection_probability() == pytest.approx(expected)

    run(main())


def test_of_calls_to_a_service_that_is_down_most_are_turned_away_and_some_probe() -> None:
    sink = Remembering()

    async def main() -> list[str]:
        return await send(throttling(sink), *[ReplicaLost("refused")] * 2000)

    outcomes = run(main())
    assert outcomes[0] == "ReplicaLost"
    sent = 1 - outcomes[200:].count("Throttled") / 1800
    assert 0.03 < sent < 0.08, "the cap of 0.95 leaves one in twenty"
    assert sink.of(Refused)[0] == Refused("c", "throttled")


def test_it_finds_back_once_the_service_has() -> None:
    async def main() -> list[str]:
        policy = throttling(window_s=10.0, buckets=10)
        await send(policy, *[ReplicaLost("refused")] * 200)
        outcomes = []
        for _ in range(600):
            await asyncio.sleep(0.1)
            outcomes += await send(policy, None)
        return outcomes

    outcomes = run(main())
    assert "Throttled" in outcomes[:100]
    assert outcomes[:100].count("Throttled") > outcomes[100:200].count("Throttled")
    assert "Throttled" not in outcomes[400:], "a few windows later nothing is left of it"


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (ReplicaBusy("503"), True),
        (AttemptTimeout("silent"), True),
        (ReplicaLost("refused"), True),
        (Overloaded("late", retry_after_s=1, predicted_s=9), True),
        (ReplicaFailed("500"), False),
        (CallRejected("bad", status=400), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_what_was_not_taken_counts_against_the_service(error: PolicyError, counts: bool) -> None:
    async def main() -> None:
        policy = throttling()
        await send(policy, *[error] * 5)
        assert (policy.rejection_probability() > 0) is counts

    run(main())


def test_a_call_that_was_cancelled_counts_not_at_all() -> None:
    async def forever(_: object) -> None:
        await asyncio.sleep(1e6)

    async def main() -> None:
        policy = throttling()
        for _ in range(20):
            task = asyncio.ensure_future(compose([policy], Script(forever))(call()))
            await asyncio.sleep(1.0)
            task.cancel()
            await asyncio.wait([task])
        assert policy.rejection_probability() == 0

    run(main())


def test_what_is_remembered_is_bounded() -> None:
    async def main() -> None:
        policy = throttling(window_s=12.0, buckets=6)
        for _ in range(200):
            await send(policy, None)
            await asyncio.sleep(1.0)
            assert len(policy._recent) <= 7
        assert policy._requests == policy._accepts == sum(one.requests for one in policy._recent) <= 14

    run(main())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ThrottlingSettings(k=0.5), "k is 0.5"),
        (lambda: ThrottlingSettings(most=1.0), "most is 1.0"),
        (lambda: ThrottlingSettings(window_s=0), "window_s=0"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_call_that_is_turned_away_costs_the_service_nothing() -> None:
    async def main() -> None:
        policy = throttling()
        for _ in range(100):
            policy._count(accepted=False)
        script = Script()
        waits: list[float] = []
        for _ in range(50):
            try:
                await compose([policy], script)(call())
            except Throttled as error:
                waits.append(error.retry_after_s)
        assert len(waits) > 30
        assert 2.0 <= min(waits) < max(waits) <= 3.0
        assert len(script.attempts) == 50 - len(waits)

    run(main())
