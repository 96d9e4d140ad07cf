"""Measures what the real cluster can carry, in the same run: the yardstick of the load.

Closed loop: a fixed number of callers keeps every slot of every replica full, through the same gateway and with
the same mix of calls as the scenario. What is counted is tokens within a window, not finished calls, so that calls
which straddle its ends do not add noise. That the replicas really were full is read from their own queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace

from chaos.admin import Admin, AdminError
from chaos.experiment import CallClass, Load
from chaos.history import CallRecord
from chaos.load.answer import ANSWERED
from chaos.load.client import LoadClient
from chaos.load.prompts import ask
from chaos.scrape import total
from chaos.signals import replica_samples
from chaos.waiting import until
from cluster.public import POLICIES, VLLM_WAITING

PROFILE = "resilient"
WITH = ("retry", "timeouts", "ejection", "least_work")
"""What the service needs to spread a load that fills it, and to get over the loss of a replica."""
WITHOUT = tuple(name for name in POLICIES if name not in WITH)
"""Nothing may be refused, lessened or queued by the gateway while capacity is measured."""
SLOTS = 8
"""Sequences that one replica is taken to decode together; raised until its own queue is never empty."""
OVERFILL = 1.25
MOST_SLOTS = 128
SETTLE_S = 1.5
"""Load runs this long before anything is looked at."""
LOOKS = 3
PAUSE_AFTER_FAILURE_S = 0.1
STRADDLE_BOUND_S = 15.0


class CalibrationError(RuntimeError):
    """The capacity could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the cluster carried within a window."""

    calls_per_s: float
    tokens_per_s: float
    duration_s: float
    calls: int
    """Calls that ended within the window."""


def capacity_of(records: Iterable[CallRecord], begin_at: float, end_at: float) -> Capacity:
    """Return the capacity from streamed calls: output tokens within the window over the mean length of an answer.

    A chunk may carry several tokens, so each counts as ``output_tokens / chunks`` of its call.

    Raises:
        CalibrationError: nothing was answered in the window.
    """
    tokens, ended, answers, lengths = 0.0, 0, 0, 0
    for record in records:
        if record.outcome not in ANSWERED or not record.token_at:
            continue
        inside = sum(1 for at in record.token_at if begin_at <= at < end_at)
        if inside:
            tokens += inside * record.output_tokens / len(record.token_at)
            answers += 1
            lengths += record.output_tokens
        ended += begin_at <= record.ended_at < end_at
    if not answers or tokens <= 0:
        raise CalibrationError(
            "nothing was answered while the cluster was kept full; 'brownout status' tells what runs"
        )
    duration_s = end_at - begin_at
    return Capacity(tokens / duration_s * answers / lengths, tokens / duration_s, duration_s, ended)


class Saturation:
    """Callers that keep a cluster full. ``records`` grows as their calls end.

    Args:
        label: makes the prompts differ from those of another calibration, which the prefix cache may still hold.
    """

    def __init__(self, admin: Admin, client: LoadClient, load: Load, label: str, settle_s: float) -> None:
        self.records: list[CallRecord] = []
        self._admin = admin
        self._client = client
        self._load = replace(load, classes=tuple(_computed(one) for one in load.classes))
        self._label = label
        self._settle_s = settle_s
        self._callers: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()
        self._under_way: set[int] = set()

    async def _caller(self) -> None:
        while True:
            n = next(self._numbers)
            asked = replace(ask(self._load, self._label, n), stream=True, transfer=False)
            self._under_way.add(n)
            request_id = f"calibrate-{self._label}-{n:05d}".replace("/", "-")
            record = await self._client.call(asked, "", n, 0.0, time.time(), request_id)
            self._under_way.discard(n)
            self.records.append(record)
            if record.outcome not in ANSWERED:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def fill(self, callers: int) -> None:
        """Have at least this many callers."""
        while len(self._callers) < callers:
            self._callers.append(asyncio.create_task(self._caller()))

    async def settle(self, replicas: int) -> bool | None:
        """Raise the number of callers until every replica's own queue is in use.

        Returns True then, False when the callers' bound was met first, None when the queues cannot be read.
        """
        slots = SLOTS
        while True:
            self.fill(round(replicas * slots * OVERFILL))
            await asyncio.sleep(self._settle_s)
            waiting = await self._all_waiting(replicas)
            if waiting or waiting is None:
                return waiting
            if slots >= MOST_SLOTS:
                return False
            slots *= 2

    async def _all_waiting(self, replicas: int) -> bool | None:
        seen: dict[str, float] = {}
        for _ in range(LOOKS):
            with contextlib.suppress(AdminError):
                for link, page in (await replica_samples(self._admin)).items():
                    if (waiting := total(page, VLLM_WAITING)) is not None:
                        seen[link] = max(seen.get(link, 0.0), waiting)
            await asyncio.sleep(self._settle_s / 8)
        if len(seen) < replicas:
            return None
        return sum(1 for waiting in seen.values() if waiting > 0) >= replicas

    async def measure(self, window_s: float) -> Capacity:
        """Measure over the next ``window_s`` seconds, and wait for the calls that are under way at its end.

        Raises:
            CalibrationError: nothing was answered.
        """
        begin_at = time.time()
        await asyncio.sleep(window_s)
        end_at = time.time()
        straddling = set(self._under_way)

        async def ended() -> bool:
            return not straddling & self._under_way

        await until(ended, STRADDLE_BOUND_S, 0.05)
        return capacity_of(self.records, begin_at, end_at)

    async def stop(self) -> None:
        """End every caller; safe twice."""
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        self._callers.clear()


def _computed(one: CallClass) -> CallClass:
    """Return the class as calls of which each is computed now: none has an effect, is put off, or is known already."""
    return replace(one, service_class="", transfer=False, repeats=False, respond_async=False, prompts=0)


@contextlib.asynccontextmanager
async def saturated(
    admin: Admin, client: LoadClient, load: Load, label: str, settle_s: float = SETTLE_S
) -> AsyncIterator[Saturation]:
    """Give a :class:`Saturation` and end its callers after the block; nothing is refused meanwhile."""
    await admin.set_profile(PROFILE, WITHOUT)
    saturation = Saturation(admin, client, load, label, settle_s)
    try:
        yield saturation
    finally:
        await saturation.stop()
