"""What an attempt still sends after its end reaches nobody: neither accounts, nor rates, nor events."""

from __future__ import annotations

import asyncio

from policies.call import Call
from policies.events import AttemptEnded, AttemptFirstToken, AttemptHeaders
from policies.fleet import Fleet, Replica
from policies.parts import Surroundings
from policies.profiles import build
from policies.progress import Progress
from policies.rates import Rates
from policies.work import Outstanding, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import run


def test_progress_of_an_attempt_that_has_ended_is_nobodys() -> None:
    """Found by the simulation: a first token was told, and learned from, after its attempt had been cancelled."""
    sink, late = Remembering(), []

    async def main() -> None:
        rates, ledger = Rates(CLOCK), WorkLedger()
        before = rates.prefill_tokens_per_s

        async def replica(one: Call) -> str:
            assert one.attempt is not None
            late.append(one.attempt.progress)
            await asyncio.sleep(60.0)
            return "never"

        pipeline = build("resilient", replica, Surroundings(Fleet([Replica("r0")]), ledger, rates, sink=sink))
        task = asyncio.ensure_future(pipeline(call("left")))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        straggler: Progress = late[0]
        straggler.headers()
        straggler.tokens(3)
        assert ledger.total == Outstanding()
        assert rates.prefill_tokens_per_s == before

    run(main())
    assert len(sink.of(AttemptEnded)) == 1
    assert sink.of(AttemptHeaders) == []
    assert sink.of(AttemptFirstToken) == []
