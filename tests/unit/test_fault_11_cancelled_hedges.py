"""Fault 11: "A thousand cancelled hedges leak the HTTP client's pool; then every call waits for a connection".

Here every hedge is decided and its loser cancelled, by the other attempt or by a client that leaves; what an attempt
holds (a connection, in the gateway) is counted. ``tests/integration/test_gateway_hedging.py`` does it with sockets.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from policies.call import Call
from policies.events import AttemptEnded, AttemptStarted, Hedged
from policies.fleet import Fleet, Replica
from policies.hedging import HedgingSettings
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.retry_budget import BudgetSettings
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import run

CALLS = 1000
PLENTY = BudgetSettings(ratio=1.0, burst=1e6, burst_tokens=1e9, burst_output_tokens=1e9)


class Connections:
    """A handler that holds something from its first line to its last, as a connection is held."""

    def __init__(self, slow: str, rng: random.Random) -> None:
        self.open = 0
        self.opened = 0
        self._slow = slow
        self._rng = rng

    async def __call__(self, one: Call, /) -> str:
        assert one.attempt is not None
        assert one.attempt.replica is not None
        self.open += 1
        self.opened += 1
        try:
            one.attempt.progress.headers()
            slow = one.attempt.replica.name == self._slow
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) if slow else 0.05)
            one.attempt.progress.tokens()
            await asyncio.sleep(0.05)
            return one.attempt.replica.name
        finally:
            await asyncio.sleep(0)  # a clean-up that itself can be cancelled
            self.open -= 1


@pytest.mark.parametrize("leaving", [False, True], ids=["the other attempt wins", "and clients leave"])
def test_a_thousand_hedges_leave_nothing_behind(leaving: bool) -> None:
    sink = Remembering()
    rng = random.Random(11)

    async def main() -> Connections:
        fleet = Fleet(Replica(name) for name in ("slow", "a", "b"))
        around = Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink)
        connections = Connections("slow", rng)
        knobs = ProfileSettings(budget=PLENTY, hedging=HedgingSettings(quantile=0.5, least_samples=5))
        extra = ["retry", "retry_budget", "hedging"]
        pipeline = build("naive", connections, around, knobs, extra=extra)
        before = asyncio.all_tasks()
        for first in range(0, 3 * CALLS, 30):
            tasks = [asyncio.ensure_future(pipeline(call(str(n)))) for n in range(first, first + 30)]
            for task in tasks if leaving else ():
                asyncio.get_running_loop().call_later(rng.uniform(0, 0.2), task.cancel)
            await asyncio.wait(tasks)
            assert connections.open == 0
            assert around.ledger.total.attempts == around.ledger.total.tokens == 0
        assert asyncio.all_tasks() == before
        return connections

    connections = run(main())
    hedges = len(sink.of(Hedged))
    assert hedges > (CALLS / 2 if leaving else CALLS)
    started, ended = Counter(_key(one) for one in sink.of(AttemptStarted)), Counter(map(_key, _ends(sink)))
    assert started == ended
    assert set(started.values()) == {1}, "no two attempts of a call have the same number"
    assert connections.opened == len(sink.of(AttemptStarted))
    losers = [one for one in _ends(sink) if one.outcome == "cancelled"]
    assert len(losers) >= hedges
    assert not any(one.outcome == "failed" for one in _ends(sink)), "to lose is not to fail"


def _ends(sink: Remembering) -> list[AttemptEnded]:
    return sink.of(AttemptEnded)


def _key(event: AttemptStarted | AttemptEnded) -> tuple[str, int]:
    return event.request_id, event.attempt
