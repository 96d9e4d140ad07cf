"""A fleet of batch engines behind limits and admission, under a load that a test chooses; on the virtual loop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from policies.call import Call, Handler
from policies.clock import Deadline
from policies.fleet import Fleet, Replica
from policies.parts import ProfileSettings, Surroundings
from policies.priority import Priority
from policies.profiles import build
from policies.rates import RatePriors, Rates
from policies.work import Work, WorkLedger
from tests.fakes.batch_engine import BatchEngines
from tests.fakes.policy_bench import CLOCK, Remembering
from tests.fakes.virtual_time import now


@dataclass(frozen=True)
class Done:
    """One call that has ended: when it came, what became of it (``ok`` or the error's name)."""

    came_at: float
    took_s: float
    priority: Priority
    became: str


class PacedFleet:
    """The profile ``resilient`` in front of engines whose slots may be others than what is believed."""

    def __init__(
        self,
        replicas: int = 3,
        *,
        slots: int = 8,
        believed_slots: int = 8,
        seed: int = 1,
        knobs: ProfileSettings | None = None,
        without: Iterable[str] = (),
        handler: Handler[str] | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.replicas = replicas
        self.slots = slots
        self.fleet = Fleet(Replica(f"r{n}") for n in range(replicas))
        priors = RatePriors(
            slots=believed_slots, prefill_base_s=0.05, prefill_s_per_token=0.0002, tpot_s=0.04
        )
        self.rates = Rates(CLOCK, priors)
        self.engines = BatchEngines(slots)
        self.engines.on_finish = self.rates.finished
        self.sink = Remembering()
        self.ledger = WorkLedger()
        around = Surroundings(self.fleet, self.ledger, self.rates, CLOCK, self.rng, self.sink)
        self.pipeline = build("resilient", handler or self.engines, around, knobs, without=without)
        assert self.pipeline.admission is not None
        self.admission = self.pipeline.admission
        self.done: list[Done] = []
        self.limits: list[tuple[float, float]] = []
        """Instant and limit of the fleet, twice a second while there is load."""

    def capacity_per_s(self, work: Work) -> float:
        """Return the calls of that work that the engines can end in a second."""
        return (
            self.replicas
            * self.slots
            / (0.05 + work.prompt_tokens * 0.0002 + (work.output_tokens - 1) * 0.04)
        )

    async def load(
        self,
        share: float,
        seconds: float,
        *,
        work: Work | None = None,
        priority: Callable[[random.Random], Priority] = lambda _: Priority.CRITICAL,
        within_s: float = 30.0,
    ) -> None:
        """Send calls for so many seconds, at that share of the capacity, and wait until all have ended."""
        mean, rng = work or Work(200, 40), self.rng
        per_s = share * self.capacity_per_s(mean)
        until, tasks = now() + seconds, list[asyncio.Task[None]]()
        while now() < until:
            own = Work(rng.randint(1, 2 * mean.prompt_tokens), rng.randint(1, 2 * mean.output_tokens))
            call = Call(
                f"c{len(self.done)}-{len(tasks)}",
                Deadline.after(within_s, CLOCK),
                own,
                priority=priority(rng),
            )
            tasks.append(asyncio.create_task(self._one(call)))
            if not self.limits or now() - self.limits[-1][0] >= 0.5:
                self.limits.append((now(), self.admission.limit))
            await asyncio.sleep(rng.expovariate(per_s))
        await asyncio.gather(*tasks)

    async def _one(self, call: Call) -> None:
        came_at = now()
        try:
            await self.pipeline(call)
            became = "ok"
        except Exception as error:
            became = type(error).__name__
        self.done.append(Done(came_at, now() - came_at, call.priority, became))

    def became(self, since: float = 0.0) -> Counter[str]:
        """Return how many calls that came since then became what."""
        return Counter(one.became for one in self.done if one.came_at >= since)

    def limit_a_replica(self, since: float = 0.0) -> tuple[float, float, float]:
        """Return the least, the mean and the greatest limit a replica since then."""
        seen = [limit / self.replicas for at, limit in self.limits if at >= since]
        return min(seen), sum(seen) / len(seen), max(seen)

    def assert_empty(self) -> None:
        """Nothing is in flight, nobody waits, nothing is booked."""
        assert self.admission.in_use() == 0
        assert self.admission.queued() == 0
        assert self.admission.active_tokens == 0
        assert self.ledger.total.attempts == self.ledger.total.tokens == 0
        assert self.engines.at_once == 0
