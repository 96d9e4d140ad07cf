"""A service on a virtual clock: replicas with batch slots and prefill, a whole pipeline, and open-loop load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from policies.call import Call
from policies.errors import PolicyError
from policies.fleet import Fleet, Replica
from policies.parts import ProfileSettings, Surroundings
from policies.profiles import build
from policies.rates import Rates
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now

SIZES = ((50, 20), (150, 30), (400, 60), (1500, 15))
"""Prompt and output tokens of calls."""


class Engine:
    """Eight slots, 33 ms a token, prompts prefilled one after the other; a prefill holds every stream up."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._slots = asyncio.Semaphore(8)
        self._step = asyncio.Lock()
        self._calls = 0
        self.frozen = False
        self.link_s = (0.0, 0.0)
        """Least and most delay of its link."""

    async def answer(self, one: Call) -> str:
        assert one.attempt is not None
        progress = one.attempt.progress
        await asyncio.sleep(self._rng.uniform(*self.link_s) + 0.002)
        progress.headers()
        async with self._slots:
            async with self._step:
                await asyncio.sleep(0.03 + one.work.prompt_tokens * 0.0002)
            await self._moves()
            progress.tokens()
            for _ in range(one.work.output_tokens - 1):
                await asyncio.sleep(0.033)
                async with self._step:
                    pass
                await self._moves()
                progress.tokens()
        return "answer"

    async def _moves(self) -> None:
        if self.frozen:
            await asyncio.Event().wait()


class Service:
    """Make it where a loop runs. ``answered`` has the prompt tokens of each answered call, and how long it took."""

    def __init__(
        self,
        seed: int,
        *,
        count: int = 3,
        without: Sequence[str] = (),
        sizes: Sequence[tuple[int, int]] = SIZES,
        settings: ProfileSettings | None = None,
    ) -> None:
        self.rng, self.sink = random.Random(seed), Remembering()
        self.fleet = Fleet((Replica(f"r{n}", str(n)) for n in range(count)), self.sink)
        self.engines = {one: Engine(self.rng) for one in self.fleet.replicas}
        self._sizes = sizes
        around = Surroundings(self.fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(seed), self.sink)
        self.pipeline = build("resilient", self._replica, around, settings, without=without)
        self.answered: list[tuple[int, float]] = []
        self.went_to: list[tuple[float, Replica, int]] = []
        """When, where, and prompt tokens of each attempt."""
        self.failed = 0

    def add(self, name: str) -> Replica:
        """Add a replica to the fleet."""
        replica = Replica(name, name)
        self.engines[replica] = Engine(self.rng)
        self.fleet.update([*self.fleet.replicas, replica])
        return replica

    async def _replica(self, one: Call) -> str:
        assert one.attempt is not None
        replica = one.attempt.replica
        assert replica is not None
        self.went_to.append((now(), replica, one.work.prompt_tokens))
        return await self.engines[replica].answer(one)

    async def _client(self, number: int) -> None:
        sent_at, work = now(), Work(*self.rng.choice(self._sizes))
        try:
            await self.pipeline(call(str(number), within_s=20, work=work))
        except PolicyError:
            self.failed += 1
        else:
            self.answered.append((work.prompt_tokens, now() - sent_at))

    async def load(self, seconds: float, *, calls_per_s: float) -> None:
        """Send calls for so long, whatever becomes of them, and wait for the last."""
        until, clients = now() + seconds, []
        while now() < until:
            clients.append(asyncio.ensure_future(self._client(len(clients))))
            await asyncio.sleep(self.rng.expovariate(calls_per_s))
        await asyncio.gather(*clients)

    async def until_out(self, replica: Replica) -> float:
        """Wait until the replica is out of rotation; return the seconds that it took."""
        began_at = now()
        while replica in self.pipeline.rotation():
            await CLOCK.sleep(0.02)
        return now() - began_at
