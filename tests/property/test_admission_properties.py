"""What holds for every history: permits, bounds, turns, shares, and the fall of the limit."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.admission import Admission, AdmissionSettings
from policies.call import Call
from policies.errors import AttemptTimeout, CallRefused, ReplicaLost
from policies.events import Admitted, Event
from policies.fair_queue import FairQueue, QueueSettings, Waiter
from policies.fleet import Fleet, Replica
from policies.limits import AimdLimit, Outcome, Sample
from policies.parts import Surroundings
from policies.priority import Priority
from policies.profiles import build
from policies.rates import RatePriors, Rates
from policies.shares import PriorityShares, ShareSettings
from policies.work import Backlog, Work, WorkLedger
from tests.fakes.batch_engine import BatchEngines
from tests.fakes.policy_bench import CLOCK, call
from tests.fakes.virtual_time import now, run

priorities = st.sampled_from(Priority)


@dataclass(frozen=True)
class Plan:
    """One call: when it comes, how it ends, and whether its caller leaves before."""

    at_s: float
    priority: Priority
    tenant: str
    work: Work
    lasts_s: float
    ends: str
    leaves_after_s: float | None
    within_s: float | None


plans = st.builds(
    Plan,
    at_s=st.floats(0, 10),
    priority=priorities,
    tenant=st.sampled_from(["", "a", "b"]),
    work=st.builds(Work, st.integers(0, 900), st.integers(0, 200), st.integers(1, 5)),
    lasts_s=st.floats(0, 4),
    ends=st.sampled_from(["ok", "failure", "timeout"]),
    leaves_after_s=st.none() | st.floats(0, 6),
    within_s=st.none() | st.floats(0.01, 6),
)
moves = st.lists(st.tuples(st.floats(0, 12), st.floats(0, 9), st.integers(0, 3)), max_size=8)
knobs = st.builds(
    AdmissionSettings,
    queue=st.builds(
        QueueSettings,
        most_calls=st.integers(1, 12),
        most_tokens=st.integers(500, 5000),
        age_s=st.sampled_from([0.5, 2.0, math.inf]),
        least_share=st.sampled_from([0.0, 0.05]),
    ),
    most_active_tokens=st.none() | st.integers(200, 3000),
)


class Watch:
    """Checks at every grant that it was within the limit, unless it was given to the only call."""

    def __init__(self) -> None:
        self.admission: Admission | None = None
        self.limit, self.live = 4.0, 2
        self.running_sequences = 0
        self.sequences: dict[str, int] = {}
        """Of each call, by its id."""

    def emit(self, event: Event) -> None:
        if not isinstance(event, Admitted) or self.live == 0:
            return
        assert self.admission is not None
        others = self.admission.in_use() - self.sequences[event.request_id]
        assert self.admission.in_use() <= self.limit or others == 0


@settings(max_examples=80, deadline=None)
@given(calls=st.lists(plans, min_size=1, max_size=30), moves=moves, knobs=knobs)
def test_permits_never_leak_however_calls_end(
    calls: list[Plan], moves: list[tuple[float, float, int]], knobs: AdmissionSettings
) -> None:
    async def main() -> None:
        watch = Watch()
        admission = watch.admission = Admission(
            lambda: watch.limit, settings=knobs, live=lambda: watch.live, clock=CLOCK, sink=watch
        )

        async def one(number: int, plan: Plan) -> None:
            async def handler(own: Call) -> None:
                watch.running_sequences += own.work.sequences
                try:
                    assert admission.in_use() == watch.running_sequences
                    await asyncio.sleep(plan.lasts_s)
                    if plan.ends == "failure":
                        raise ReplicaLost("cut")
                    if plan.ends == "timeout":
                        raise AttemptTimeout("late")
                finally:
                    watch.running_sequences -= own.work.sequences

            watch.sequences[str(number)] = plan.work.sequences
            await asyncio.sleep(plan.at_s)
            own = call(
                str(number),
                within_s=plan.within_s,
                work=plan.work,
                priority=plan.priority,
                tenant=plan.tenant,
            )
            task = asyncio.ensure_future(admission(own, handler))
            await asyncio.wait([task], timeout=plan.leaves_after_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def move() -> None:
            for at_s, limit, live in sorted(moves):
                await asyncio.sleep(max(0.0, at_s - now()))
                watch.limit, watch.live = limit, live

        await asyncio.gather(move(), *(one(number, plan) for number, plan in enumerate(calls)))
        assert watch.running_sequences == 0
        assert admission.in_use() == 0
        assert [admission.in_use(one) for one in Priority] == [0] * 4
        assert admission.active_tokens == 0
        assert admission.queued() == 0
        assert admission.backlog() == Backlog()

    run(main())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), load=st.floats(0.2, 4), limit=st.integers(1, 12))
def test_every_call_is_answered_or_refused_within_what_it_may_wait(
    seed: int, load: float, limit: int
) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        admission = Admission(lambda: limit, 5.0, clock=CLOCK, rng=rng)
        waited: list[float] = []
        come_back: list[float] = []

        async def one() -> None:
            came = now()

            async def handler(_: Call) -> None:
                waited.append(now() - came)
                await asyncio.sleep(rng.uniform(0.1, 0.9))

            try:
                await admission(call(priority=rng.choice(list(Priority))), handler)
            except CallRefused as refusal:
                waited.append(now() - came)
                come_back.append(refusal.retry_after_s)

        tasks = []
        for _ in range(150):
            tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(rng.expovariate(load * limit / 0.5))
        await asyncio.gather(*tasks)
        assert len(waited) == 150
        assert max(waited) <= 5.0 + 1e-6
        assert all(1 <= one <= 30 for one in come_back)

    run(main())


samples = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(0, 60),
        st.sampled_from(Outcome),
        st.none() | st.floats(0, 100),
        st.none() | st.floats(0, 100),
        st.floats(0, 5),
    ),
    max_size=200,
)


@given(samples=samples, slots=st.integers(1, 32))
def test_a_limit_stays_in_bounds_and_recovers(
    samples: list[tuple[float, int, Outcome, float | None, float | None, float]], slots: int
) -> None:
    limit = AimdLimit(slots)
    least, most = limit.bounds
    at = 0.0
    for after_s, in_use, outcome, ttft, tpot, age_s in samples:
        at += after_s
        limit.sample(Sample(at - age_s, in_use, outcome, ttft, tpot), at)
        assert least <= limit.value <= most
    for _ in range(slots * slots + 50):
        at += 0.1
        before = limit.value
        limit.sample(Sample(at, math.ceil(limit.value), ttft_ratio=1.0), at)
        assert before <= limit.value <= before + 1
    assert limit.value > min(most, 1.25 * slots) - 1e-9


@given(waiting=st.lists(st.tuples(priorities, st.sampled_from("abc"), st.integers(1, 500)), max_size=60))
def test_the_queue_knows_no_inversion(waiting: list[tuple[Priority, str, int]]) -> None:
    queue = FairQueue[Waiter](QueueSettings(age_s=math.inf, least_share=0))
    for priority, tenant, tokens in waiting:
        queue.add(Waiter(priority, tenant, Work(tokens, 0), 0.0), 0.0)
    left = sorted(priority for priority, _, _ in waiting)
    while len(queue):
        first = next(queue.in_turn(0.0))
        assert first.priority == left.pop(0)
        queue.serve(first, 0.0)
    assert not left


@settings(max_examples=50)
@given(
    flood=st.sampled_from([Priority.CRITICAL_PLUS, Priority.CRITICAL, Priority.SHEDDABLE_PLUS]),
    by_age=st.booleans(),
    every_s=st.floats(0.01, 0.5),
)
def test_nobody_starves_behind_a_flood_of_more_important_calls(
    flood: Priority, by_age: bool, every_s: float
) -> None:
    knobs = QueueSettings(age_s=2.0, least_share=0) if by_age else QueueSettings(age_s=math.inf)
    queue = FairQueue[Waiter](knobs)
    poor = Waiter(Priority.SHEDDABLE, "poor", Work(10, 0), 0.0)
    queue.add(poor, 0.0)
    turns = 0
    while True:
        at = turns * every_s
        for _ in range(2):  # twice as many come as are served
            queue.add(Waiter(flood, "rich", Work(10, 0), at), at)
        first = next(queue.in_turn(at))
        queue.serve(first, at)
        turns += 1
        if first is poor:
            break
    if by_age:
        assert turns * every_s <= 2.0 * (Priority.SHEDDABLE - flood) + 2 * every_s + 2.0 * flood
    else:
        assert turns <= 1 / knobs.least_share + 2


@given(
    weights=st.lists(st.integers(1, 400), min_size=2, max_size=5),
    calls=st.integers(20, 60),
)
def test_tenants_that_always_wait_are_given_the_same_work(weights: list[int], calls: int) -> None:
    """In start-time fair queueing two of them never differ by more than the largest call of each."""
    queue = FairQueue[Waiter](QueueSettings(age_s=math.inf))
    for tenant, tokens in enumerate(weights):
        for _ in range(calls * max(1, 400 // tokens)):
            queue.add(Waiter(Priority.CRITICAL, str(tenant), Work(tokens, 0), 0.0), 0.0)
    given_tokens = [0] * len(weights)
    for _ in range(calls):
        first = next(queue.in_turn(0.0))
        queue.serve(first, 0.0)
        given_tokens[int(first.tenant)] += first.work.tokens
        for a, one in enumerate(given_tokens):
            for b, other in enumerate(given_tokens):
                assert abs(one - other) <= weights[a] + weights[b]


@given(
    steps=st.lists(st.tuples(st.booleans(), priorities, st.integers(1, 3)), max_size=100),
    limit=st.floats(1, 40),
    reserved=st.tuples(*(st.floats(0, 0.24) for _ in range(4))),
)
def test_the_shares_of_the_more_important_hold(
    steps: list[tuple[bool, Priority, int]], limit: float, reserved: tuple[float, float, float, float]
) -> None:
    """After anybody was let in, all that was kept from it is still free."""
    shares = PriorityShares(ShareSettings(reserved))
    for priority in Priority:
        shares.seen(priority, 0.0)
    held: list[tuple[Priority, int]] = []
    for takes, priority, sequences in steps:
        if takes and sequences <= shares.room(priority, limit, 0.0):
            shares.take(priority, sequences)
            held.append((priority, sequences))
            kept = sum(max(0.0, reserved[more] * limit - shares.in_use[more]) for more in range(priority))
            assert shares.total + math.floor(kept) <= limit
        elif not takes and held:
            shares.give(*held.pop(sequences % len(held)))
        assert shares.total == sum(shares.in_use) == sum(n for _, n in held)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    load=st.floats(0.8, 3.0),
    lost_at_s=st.floats(1, 2.5),
    replicas=st.integers(2, 4),
)
def test_when_a_replica_leaves_the_admitted_work_falls_to_the_new_capacity_within_a_second(
    seed: int, load: float, lost_at_s: float, replicas: int
) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        fleet = Fleet(Replica(f"r{n}") for n in range(replicas))
        rates = Rates(CLOCK, RatePriors(slots=4, prefill_base_s=0.05, tpot_s=0.04))
        engines = BatchEngines(4)
        after_loss: list[float] = []

        class Sink:
            def emit(self, event: Event) -> None:
                if isinstance(event, Admitted) and len(fleet.replicas) < replicas:
                    assert pipeline.admission is not None
                    after_loss.append(now())
                    assert pipeline.admission.in_use() <= pipeline.admission.limit, "over the new capacity"

        around = Surroundings(fleet, WorkLedger(), rates, CLOCK, rng, Sink())
        pipeline = build("resilient", engines, around, without=["adaptive_limit"])  # 5 sequences each
        admission = pipeline.admission
        assert admission is not None

        async def one(number: int) -> None:
            with contextlib.suppress(CallRefused):
                await pipeline(call(str(number), work=Work(50, rng.randint(5, 15))))

        per_s = load * replicas * 4 / 0.5
        tasks = []
        while now() < lost_at_s + 1.5:
            if now() >= lost_at_s and len(fleet.replicas) == replicas:
                before = admission.limit
                fleet.update(fleet.replicas[1:])
                assert admission.limit < before, "at once"
                lost_at = now()
            if now() >= lost_at_s + 1:
                assert admission.in_use() <= admission.limit == 5 * (replicas - 1)
            tasks.append(asyncio.create_task(one(len(tasks))))
            await asyncio.sleep(rng.expovariate(per_s))
        await asyncio.gather(*tasks)
        assert after_loss
        assert min(after_loss) - lost_at < 1.0, "and the survivors go on being used"
        assert admission.in_use() == 0

    run(main())
