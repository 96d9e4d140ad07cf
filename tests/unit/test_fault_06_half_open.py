"""Fault 6: half-open stampede; half-open stuck for ever because a probe never returned its permit."""

from __future__ import annotations

import asyncio

import pytest

from policies.breaker import Breaker, BreakerSettings, State
from policies.errors import BreakerOpen
from tests.fakes.policy_bench import CLOCK
from tests.fakes.virtual_time import run


async def fail() -> None:
    raise OSError("away")


async def open_breaker(**settings: int) -> Breaker:
    breaker = Breaker(settings=BreakerSettings(**settings))  # type: ignore[arg-type]
    while breaker.state is State.CLOSED:
        with pytest.raises(OSError, match="away"):
            await breaker.run(fail)
    await CLOCK.sleep(3)
    return breaker


@pytest.mark.parametrize("probes", [1, 3])
def test_a_thousand_callers_who_waited_for_it_to_half_open_send_only_the_probes(probes: int) -> None:
    async def main() -> tuple[int, int]:
        breaker = await open_breaker(probes=probes)
        at_once = most = 0

        async def slow_answer() -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.5)
            at_once -= 1

        async def client() -> bool:
            try:
                await breaker.run(slow_answer)
            except BreakerOpen:
                return False
            return True

        answered = sum(await asyncio.gather(*(client() for _ in range(1000))))
        return most, answered

    assert run(main()) == (probes, probes)


@pytest.mark.parametrize("how", ["hangs", "cancelled"])
def test_a_probe_that_never_comes_back_does_not_keep_it_half_open_for_ever(how: str) -> None:
    async def main() -> None:
        breaker = await open_breaker()
        lost = asyncio.ensure_future(breaker.run(asyncio.Event().wait))
        await asyncio.sleep(0.1)
        with pytest.raises(BreakerOpen) as caught:
            await breaker.run(fail)
        assert caught.value.retry_after_s > 0
        if how == "cancelled":
            lost.cancel()
            await asyncio.wait([lost])
        else:
            await asyncio.sleep(BreakerSettings().lease_s)
        for _ in range(BreakerSettings().good_probes):
            await breaker.run(lambda: asyncio.sleep(0.1))
        assert breaker.state is State.CLOSED
        lost.cancel()
        await asyncio.wait([lost])
        assert breaker.state is State.CLOSED, "and the lost one has no say any more"

    run(main())
