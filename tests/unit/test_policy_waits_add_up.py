"""The waits of a call for permits add up: who was turned away and asks for less has not arrived anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from policies.admission import Admission
from policies.call import Call, compose
from policies.degradation import Degradation
from policies.errors import WaitedTooLong
from policies.work import Work
from tests.fakes.policy_bench import call
from tests.fakes.virtual_time import now, run


class EachRungTakesSomething:
    def at(self, one: Call, rung: str) -> Call:
        return replace(one, work=Work(one.work.prompt_tokens // 2, one.work.output_tokens // 2))


def test_a_call_that_is_lessened_waits_no_longer_than_one_that_is_not() -> None:
    """Found by the simulation: each rung of the ladder gave a call the whole longest wait again, 15 s for 5 s."""

    async def main() -> None:
        async def occupied(_: Call) -> None:
            await asyncio.sleep(60.0)

        handle = compose([Degradation(), Admission(lambda: 1, 5.0)], occupied)
        first = asyncio.ensure_future(handle(call("first")))
        await asyncio.sleep(0)
        waits = call("waits", work=Work(400, 40), degradable=EachRungTakesSomething())
        with pytest.raises(WaitedTooLong):
            await handle(waits)
        assert now() <= 5.0 + 1e-6
        assert waits.delivery.waited_s == pytest.approx(now())
        first.cancel()
        await asyncio.wait([first])

    run(main())
