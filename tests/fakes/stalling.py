"""Replicas that freeze, and a dispatch with stall detection in front of them, on a virtual clock."""

from __future__ import annotations

import asyncio
import random

from policies.balance import LeastWork
from policies.call import Attempt, Call, compose
from policies.dispatch import Dispatch
from policies.errors import AttemptError, NoReplica
from policies.events import Ejected
from policies.fleet import Fleet, Replica
from policies.outlier import OutlierDetection
from policies.rates import Rates
from policies.stall import StallSettings, StallWatch
from policies.timeouts import AttemptTimeouts, TimeoutSettings
from policies.work import WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now


class Freezer:
    """Make it where a loop runs. A frozen replica's engine gives no token; a *stopped* one sends no headers either."""

    def __init__(
        self, count: int = 3, *, settings: StallSettings | None = None, header_s: float = 1.0
    ) -> None:
        self.sink = Remembering()
        self.replicas = tuple(Replica(f"r{n}") for n in range(count))
        self.fleet = Fleet(self.replicas)
        self.rates = Rates(CLOCK)
        self.outlier = OutlierDetection(self.fleet, clock=CLOCK, rng=random.Random(1), sink=self.sink)
        self.watch = StallWatch(settings, clock=CLOCK, rates=self.rates, on_stall=self.outlier.stalled)
        ledger = WorkLedger()
        self.dispatch = Dispatch(
            self.fleet,
            LeastWork(ledger, self.rates),
            ledger=ledger,
            rates=self.rates,
            clock=CLOCK,
            sink=self.sink,
            outlier=self.outlier,
            observers=[self.watch],
        )
        timeouts = AttemptTimeouts(TimeoutSettings(header_s=header_s), clock=CLOCK)
        self._handler = compose([self.dispatch, timeouts], self.replica)
        self._thawed = {one: asyncio.Event() for one in self.replicas}
        self._running = {one: asyncio.Event() for one in self.replicas}
        self.prefill_s = 0.06
        for one in self.replicas:
            self.thaw(one)

    def freeze(self, replica: Replica, *, stopped: bool = False) -> None:
        self._thawed[replica].clear()
        if stopped:
            self._running[replica].clear()

    def thaw(self, replica: Replica) -> None:
        self._thawed[replica].set()
        self._running[replica].set()

    async def replica(self, one: Call) -> int:
        """Answer with 20 tokens, 33 ms apart."""
        assert one.attempt is not None
        assert one.attempt.replica is not None
        thawed, progress = self._thawed[one.attempt.replica], one.attempt.progress
        await self._running[one.attempt.replica].wait()
        progress.headers()
        await asyncio.sleep(self.prefill_s)
        for number in range(20):
            await asyncio.sleep(0.033 if number else 0.0)
            await thawed.wait()
            progress.tokens()
        return 20

    async def attempt(self, on: Replica, **fields: object) -> str:
        """Make one attempt on that replica and return how it ended: ``ok`` or the error's name."""
        others = tuple(one for one in self.replicas if one is not on)
        try:
            await self._handler(call(**fields).trying(Attempt(1, avoid=others)))  # type: ignore[arg-type]
        except (AttemptError, NoReplica) as error:
            return type(error).__name__
        return "ok"

    def sending(self, on: Replica, **fields: object) -> asyncio.Task[str]:
        return asyncio.ensure_future(self.attempt(on, **fields))

    async def ejected_within_s(self, replica: Replica, limit_s: float = 60.0) -> float:
        """Return the seconds until the replica is out of rotation; infinity when it is not."""
        began_at = now()
        while replica in self.dispatch.rotation():
            if now() - began_at > limit_s:
                return float("inf")
            await asyncio.sleep(0.01)
        return now() - began_at

    def ejections(self) -> list[str]:
        return [event.replica for event in self.sink.of(Ejected)]
