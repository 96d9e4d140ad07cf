"""What hangs on the store: everything of a request that must never be lost or leaked.

A part is None where the gateway runs without a store (``BROWNOUT_STORE=none``, for benchmarks): then nothing is
recorded, claimed or kept, and the gateway says so when it starts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from cluster.gateway.answer_cache import AnswerCache
from cluster.gateway.audit import Audit
from cluster.gateway.claims import Claims, new_owner
from cluster.gateway.jobs import Jobs
from cluster.gateway.jobs_queue import SqlQueue
from cluster.gateway.quotas import Quotas
from cluster.gateway.steps import Steps
from cluster.gateway.store.store import Store
from cluster.settings import Settings
from policies.clock import SystemClock

QUOTA_JITTER_S: Final = 2.0
"""Callers who used up their quota in one minute come back spread over so much of the next."""


@dataclass(slots=True)
class State:
    """The parts, each with a module of its own."""

    store: Store | None = None
    quotas: Quotas | None = None
    audit: Audit | None = None
    claims: Claims | None = None
    steps: Steps | None = None
    answers: AnswerCache | None = None
    jobs: Jobs | None = None

    async def aclose(self) -> None:
        """Write what still waits to be written, and close; the store last."""
        for part in (self.jobs, self.claims, self.answers, self.quotas, self.audit):
            if part is not None:
                await part.aclose()
        if self.store is not None:
            await self.store.close()


async def open_state(settings: Settings, store: Store | None) -> State:
    """Return the parts that stand on ``store``, which is migrated and open; it is closed with them.

    Each part is made here, in one line, from the settings and the store. A part that needs the gateway itself (the
    runner of jobs) is bound to it later, by :class:`~cluster.gateway.service.Gateway`.
    """
    state = State(store=store)
    if store is None:
        return state
    state.quotas = Quotas(store, SystemClock(), jitter_s=lambda: random.uniform(0, QUOTA_JITTER_S))
    state.audit = Audit(store)
    state.answers = AnswerCache(settings, store)
    state.claims = Claims(store, new_owner(), lease_s=settings.idempotency_lease_s)
    state.steps = Steps(store)
    state.jobs = Jobs(SqlQueue(store, settings.queue_rules))
    return state
