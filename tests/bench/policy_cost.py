"""``python -m tests.bench.policy_cost``: what one decision of a policy costs, and what a waiting call takes.

Microseconds of CPU time a decision (the best of several rounds, so that neighbours on the machine count little), on
an ordinary event loop, with 10,000 calls queued where there is a queue. To add a line, add it to ``DECISIONS``: a
name, a function that sets things up and returns what is to be timed, and how many decisions that makes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

from policies.admission import Admission, AdmissionSettings
from policies.breaker import Breaker, Verdict
from policies.call import Attempt, Call, Handler
from policies.clock import SystemClock
from policies.early_rejection import EarlyRejection
from policies.fair_queue import FairQueue, QueueSettings, Waiter
from policies.fleet import Fleet, Replica
from policies.hedging import Hedging
from policies.limits import AimdLimit, Sample
from policies.observe import ObservedAttempt
from policies.outlier import OutlierDetection
from policies.parts import ProfileSettings, Surroundings
from policies.priority import Priority
from policies.profiles import POLICIES, build
from policies.progress import Progress
from policies.rates import Rates
from policies.retry_budget import BudgetSettings, RetryBudget
from policies.routing import make_dispatch
from policies.stall import StallWatch
from policies.throttling import ClientThrottling
from policies.work import Work, WorkLedger

QUEUED: Final = 10_000
MOST_US: Final = 20.0
MOST_MB: Final = 50.0
_REPLICAS: Final = 3
_STREAMS: Final = 24
_CLOCK: Final = SystemClock()
_ROOMY: Final = QueueSettings(most_calls=2 * QUEUED, most_tokens=10**12)

Decision = Callable[[], object]
"""Does what is timed: one decision, or a pair that belongs together."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One line of the table."""

    name: str
    us: float


def around() -> Surroundings:
    fleet = Fleet(Replica(f"r{n}") for n in range(_REPLICAS))
    return Surroundings(fleet, WorkLedger(), Rates(_CLOCK), _CLOCK, random.Random(1))


def filled_queue() -> FairQueue[Waiter]:
    queue, rng = FairQueue[Waiter](_ROOMY), random.Random(1)
    now = _CLOCK.now()
    for _ in range(QUEUED):
        queue.add(some_waiter(rng, now), now)
    return queue


def some_waiter(rng: random.Random, now: float) -> Waiter:
    return Waiter(rng.choice(list(Priority)), f"t{rng.randrange(100)}", Work(rng.randrange(1, 999), 40), now)


def push_and_pop() -> Decision:
    """One comes and one is served, so that the queue stays as long as it is."""
    queue, rng = filled_queue(), random.Random(2)
    coming = [some_waiter(rng, _CLOCK.now()) for _ in range(QUEUED)]
    numbers = count()

    def decide() -> None:
        now = _CLOCK.now()
        queue.add(coming[next(numbers) % QUEUED], now)
        served = next(queue.in_turn(now))
        queue.serve(served, now)
        coming[(next(numbers) - 1) % QUEUED] = Waiter(served.priority, served.tenant, served.work, now)

    return decide


def leave_the_queue() -> Decision:
    """One comes and leaves again, as a cancelled call does."""
    queue, rng = filled_queue(), random.Random(2)

    def decide() -> None:
        now = _CLOCK.now()
        waiter = Waiter(Priority.CRITICAL, f"t{rng.randrange(100)}", Work(10, 10), now)
        queue.add(waiter, now)
        queue.remove(waiter, now)

    return decide


def sample_a_limit() -> Decision:
    limit = AimdLimit(8)
    sample = Sample(0.0, 10, ttft_ratio=1.5)
    return lambda: limit.sample(sample, 1.0)


def reject_early() -> Decision:
    surroundings = around()
    for replica in surroundings.fleet.replicas:
        surroundings.ledger.reserve(replica, Work(100, 20))
    policy = EarlyRejection(
        5.0,
        rotation=lambda: surroundings.fleet.replicas,
        ledger=surroundings.ledger,
        rates=surroundings.rates,
    )
    return lambda: policy.predicted_ttft_s(100, Priority.CRITICAL)


def admit_and_release() -> Decision:
    """With nobody waiting: what an ordinary call pays. The handler below does nothing."""
    pipeline = build("resilient", nothing, around())
    assert pipeline.admission is not None
    return step(pipeline.admission, Call("c", work=Work(100, 20)))


def step(admission: Admission, call: Call) -> Decision:
    def decide() -> None:
        try:
            admission(call, nothing).send(None)
        except StopIteration:
            return
        raise AssertionError("the call had to wait")

    return decide


def choose_a_replica() -> Decision:
    """Rotation, leases, suspicion, balance and isolation, with all three replicas busy."""
    surroundings = around()
    for number in range(_STREAMS):
        surroundings.ledger.reserve(surroundings.fleet.replicas[number % _REPLICAS], Work(100, 20))
    dispatch, call = make_dispatch(surroundings, ProfileSettings(), POLICIES), Call("c", work=Work(100, 20))
    attempt = Attempt()
    return lambda: dispatch._choose(call, attempt)


def rotate_around_one() -> Decision:
    surroundings = around()
    outlier = OutlierDetection(surroundings.fleet)
    outlier.stalled(surroundings.fleet.replicas[0], "silence")
    return outlier.rotation


def look_for_stalls() -> Decision:
    """At one replica's streams; ten times a second."""
    watch, replica = StallWatch(), Replica("r0")
    for _ in range(_STREAMS // _REPLICAS):
        progress = Progress(_CLOCK)
        progress.tokens()
        watch.started(
            ObservedAttempt("c", 1, replica, Work(100, 20), progress, 0.0, True, lambda error: None)
        )
    (line,) = watch._lines.values()
    return lambda: watch._silent_s(line, _CLOCK.now())


def permit_and_close() -> Decision:
    breaker = Breaker()
    return lambda: breaker.permit().close(Verdict.GOOD)


def earn_hold_and_spend() -> Decision:
    """What the budget costs a call that is retried once."""
    budget, work = RetryBudget(_CLOCK, BudgetSettings(ratio=1.0)), Work(100, 20)

    def decide() -> None:
        budget.deposit(work)
        hold = budget.hold(work)
        assert hold is not None
        hold.spend()

    return decide


def learn_what_is_late() -> Decision:
    """One time to first token taken in, and the threshold of the next hedge read."""
    hedging, rng = Hedging(), random.Random(1)
    times = [rng.lognormvariate(-1.5, 0.5) for _ in range(1000)]
    numbers = count()

    def decide() -> None:
        hedging._ttft.observe("chat", times[next(numbers) % len(times)])
        hedging.after_s("chat")

    return decide


def throttle_one() -> Decision:
    throttling = ClientThrottling()

    def decide() -> None:
        throttling.rejection_probability()
        throttling._count(accepted=True)

    return decide


async def nothing(_: Call) -> None:
    """Answer at once."""


DECISIONS: Final[list[tuple[str, Callable[[], Decision], int]]] = [
    (f"fair queue: push, pop ({QUEUED:,} queued)", push_and_pop, 2),
    (f"fair queue: push, leave ({QUEUED:,} queued)", leave_the_queue, 2),
    ("adaptive limit: a sample", sample_a_limit, 1),
    ("early rejection: a prediction", reject_early, 1),
    ("admission: acquire, release (nobody queued)", admit_and_release, 2),
    ("dispatch: the choice of a replica", choose_a_replica, 1),
    ("ejection: rotation, one replica out", rotate_around_one, 1),
    ("stall watch: a look at eight streams", look_for_stalls, 1),
    ("breaker: a permit and its end", permit_and_close, 1),
    ("retry budget: earn, hold, spend", earn_hold_and_spend, 1),
    ("hedging: learn a first token, read what is late", learn_what_is_late, 1),
    ("client throttling: decide and count", throttle_one, 1),
]


def timed(name: str, decide: Decision, decisions: int, *, rounds: int = 7, times: int = 2_000) -> Timed:
    """Return the mean of the best round, in microseconds a decision."""
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(times):
            decide()
        best = min(best, time.thread_time() - started)
    return Timed(name, 1e6 * best / times / decisions)


async def handed_on(around_call: Callable[[Call, Handler[None]], Awaitable[None]], name: str) -> Timed:
    """A place that is held by one of 10,001 calls comes back and goes to the next, again and again."""
    done, gate = [0], asyncio.Event()

    async def handle(call: Call) -> None:
        if call.request_id == "holder":
            await gate.wait()
        await asyncio.sleep(0)
        done[0] += 1

    async def one(call: Call) -> None:
        await around_call(call, handle)

    rng = random.Random(1)
    calls = [
        Call(
            f"c{number}",
            work=Work(rng.randrange(1, 999), 40),
            priority=rng.choice(list(Priority)),
            tenant=f"t{number % 100}",
        )
        for number in range(QUEUED)
    ]
    tasks = [asyncio.create_task(one(call)) for call in (Call("holder"), *calls)]
    await asyncio.sleep(0)
    gc.collect()
    gc.disable()  # a collection walks through all that wait, which is no part of a decision
    try:
        gate.set()
        best = float("inf")
        for turn in range(1, 9):
            started = time.thread_time()
            await passes(lambda: done[0] >= turn * 1_000)  # noqa: B023 - awaited here
            best = min(best, time.thread_time() - started)
    finally:
        gc.enable()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Timed(name, 1e6 * best / 1_000)


async def release_and_hand_on() -> Timed:
    """What the limiter takes for it beyond what tasks, futures and the loop take: a plain semaphore has those too."""
    semaphore = asyncio.Semaphore(1)

    async def plainly(call: Call, handle: Handler[None]) -> None:
        async with semaphore:
            await handle(call)

    admission = Admission(lambda: 1.0, 3600.0, settings=AdmissionSettings(queue=_ROOMY))
    plain = await handed_on(plainly, "")
    full = await handed_on(admission, "")
    name = f"admission: release, hand on ({QUEUED:,} queued; beyond the {plain.us / 2:.0f} us of a semaphore)"
    return Timed(name, (full.us - plain.us) / 2)


async def passes(done: Callable[[], bool]) -> None:
    """Let the loop run until it is so; an event would be part of what is timed."""
    while not done():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def megabytes_of_a_full_queue() -> float:
    """Return what 10,000 calls take that wait in the whole ``resilient`` pipeline: tasks, calls, timers and all."""
    surroundings = around()
    knobs = ProfileSettings(
        admission=AdmissionSettings(queue=_ROOMY), default_deadline_s=3600, ttft_objective_s=3600
    )

    async def hold(_: Call) -> None:
        await asyncio.sleep(3600)

    pipeline = build("resilient", hold, surroundings, knobs)
    assert pipeline.admission is not None
    limit = int(pipeline.admission.limit)
    gc.collect()
    before = _resident_bytes()
    tasks = [
        asyncio.create_task(pipeline(Call(f"c{number}", work=Work(100, 20), tenant=f"t{number % 100}")))
        for number in range(QUEUED + limit)
    ]
    queued = pipeline.admission.queued
    await passes(lambda: queued() >= QUEUED)
    taken = _resident_bytes() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return taken / 1e6


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure() -> tuple[list[Timed], float]:
    """Return the table and the megabytes of a full queue."""
    megabytes = await megabytes_of_a_full_queue()  # first, while the heap is still small
    lines = [timed(name, make(), decisions) for name, make, decisions in DECISIONS]
    lines.append(await release_and_hand_on())
    return lines, megabytes


def run(measuring: Callable[[], Awaitable[tuple[list[Timed], float]]] = measure) -> int:
    """Print the table; return 1 when something is over its bound."""

    async def main() -> tuple[list[Timed], float]:
        return await measuring()

    lines, megabytes = asyncio.run(main())
    for line in lines:
        print(f"{line.us:8.2f} us  {line.name}")
    print(f"{megabytes:8.1f} MB  {QUEUED:,} calls that wait in the pipeline of the profile resilient")
    over = [line.name for line in lines if line.us > MOST_US] + (["memory"] if megabytes > MOST_MB else [])
    print(f"over {MOST_US:.0f} us or {MOST_MB:.0f} MB: {', '.join(over) or 'nothing'}")
    return 1 if over else 0


if __name__ == "__main__":
    raise SystemExit(run())
