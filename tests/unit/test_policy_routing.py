"""What the parts of dispatch do together: slow replicas, returns, new replicas, and long prompts among short calls."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise

import pytest

from policies.balance import LeastWork
from policies.events import Ejected, Returned
from policies.fleet import Fleet, Replica
from policies.isolation import Isolation, IsolationSettings
from policies.observe import ObservedAttempt
from policies.progress import Progress
from policies.rates import Rates
from policies.slow_start import SlowStart, SlowStartSettings
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, FixedClock
from tests.fakes.slotted import Service
from tests.fakes.virtual_time import now, run

SHORT = ((150, 18),)


# --- a slow replica --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_behind_a_slow_link_is_out_within_seconds_and_probed_at_growing_intervals(
    seed: int,
) -> None:
    async def main() -> None:
        service = Service(seed, sizes=SHORT)
        slow = service.fleet.replicas[0]
        loading = asyncio.ensure_future(service.load(40.0, calls_per_s=18.0))
        await asyncio.sleep(5.0)
        assert service.sink.of(Ejected) == []
        slow_since = now()
        service.engines[slow].link_s = (0.3, 0.5)
        assert await service.until_out(slow) < 5.0
        await asyncio.sleep(30.0)
        ejections = service.sink.of(Ejected)
        assert {event.replica for event in ejections} == {slow.name}
        assert len(ejections) >= 3
        assert all(after.for_s > before.for_s for before, after in pairwise(ejections[:3]))
        on_slow = [at for at, replica, _ in service.went_to if replica is slow and at > slow_since + 6.0]
        assert len(on_slow) < 20, "but for its probes it is left alone"
        service.engines[slow].link_s = (0.0, 0.0)
        await loading
        assert service.failed == 0

    run(main())


@pytest.mark.parametrize("seed", range(3))
def test_where_all_links_are_alike_nobody_is_slow(seed: int) -> None:
    async def main() -> list[Ejected]:
        service = Service(seed)
        for engine in service.engines.values():
            engine.link_s = (0.0, 0.6)
        await service.load(30.0, calls_per_s=9.0)
        return service.sink.of(Ejected)

    assert run(main()) == []


# --- slow start ------------------------------------------------------------------------------------------


def test_a_weight_rises_from_its_start_to_one() -> None:
    clock = FixedClock()
    a, b = Replica("a"), Replica("b", "1")
    fleet = Fleet([a])
    slow_start = SlowStart(fleet, SlowStartSettings(from_weight=0.2, rise_s=4.0), clock=clock)
    assert slow_start.weight(a) == 1.0, "those that were there first have nobody to be slower than"
    fleet.update([a, b])
    weights = []
    for _ in range(5):
        weights.append(round(slow_start.weight(b), 3))
        clock.at += 1.0
    assert weights == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert slow_start.weight(a) == 1.0
    slow_start.returned(a)
    assert slow_start.weight(a) == 0.2
    fleet.update([b])
    slow_start.weight(b)
    assert not slow_start._rising, "nothing is kept of replicas that are gone"


def test_the_first_fleet_that_is_found_starts_at_once() -> None:
    fleet = Fleet()
    slow_start = SlowStart(fleet, clock=FixedClock())
    fleet.update([Replica("a"), Replica("b", "1")])
    assert [slow_start.weight(one) for one in fleet.replicas] == [1.0, 1.0]


def test_a_new_replica_gets_its_share_bit_by_bit() -> None:
    async def main(seed: int, without: tuple[str, ...]) -> tuple[int, int]:
        service = Service(seed, sizes=SHORT, without=without)
        loading = asyncio.ensure_future(service.load(12.0, calls_per_s=26.0))
        await asyncio.sleep(4.0)
        new, added_at = service.add("new"), now()
        await loading
        got = [at - added_at for at, one, _ in service.went_to if one is new]
        return sum(after_s < 1.5 for after_s in got), sum(6.0 <= after_s < 7.5 for after_s in got)

    early, late = map(sum, zip(*(run(main(seed, ())) for seed in range(3)), strict=True))
    at_once, _ = map(sum, zip(*(run(main(seed, ("slow_start",))) for seed in range(3)), strict=True))
    assert early < 0.7 * at_once
    assert early < 0.7 * late


def test_an_idle_replica_is_idle_whatever_its_weight() -> None:
    async def main() -> Counter[str]:
        replicas = (Replica("a"), Replica("b"))
        ledger, rates = WorkLedger(), Rates(CLOCK)
        balancer = LeastWork(ledger, rates, weight=lambda one: 0.2 if one is replicas[1] else 1.0)
        return Counter(balancer.pick(replicas, work=Work(100, 20)).name for _ in range(10))

    assert run(main()) == {"a": 5, "b": 5}


def test_a_free_slot_goes_before_less_work() -> None:
    async def main() -> tuple[str, str]:
        slots, small = Rates(CLOCK).slots, Work(10, 1)
        full, loaded = Replica("full"), Replica("loaded")
        ledger = WorkLedger()
        balancer = LeastWork(ledger, Rates(CLOCK))
        for _ in range(slots):
            ledger.reserve(full, small)
        for _ in range(slots - 1):
            ledger.reserve(loaded, Work(10, 2000))
        first = balancer.pick((full, loaded), work=small).name
        ledger.reserve(loaded, small)
        return first, balancer.pick((full, loaded), work=small).name

    assert run(main()) == ("loaded", "full"), "where all slots are taken the one that is done first is asked"


def test_a_replica_of_lower_weight_counts_as_full_earlier() -> None:
    async def main() -> list[str]:
        warm, cold, ledger = Replica("warm"), Replica("cold"), WorkLedger()
        balancer = LeastWork(ledger, Rates(CLOCK), weight=lambda one: 0.5 if one is cold else 1.0)
        ledger.reserve(warm, Work(10, 5000))
        seen = []
        for _ in range(Rates(CLOCK).slots):
            seen.append(balancer.pick((warm, cold), work=Work(10, 1)).name)
            ledger.reserve(cold, Work(10, 1))
        return seen

    seen = run(main())
    assert seen == ["cold"] * (len(seen) // 2) + ["warm"] * (len(seen) // 2)


def test_settings_of_slow_start_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="from_weight"):
        SlowStartSettings(from_weight=0)
    with pytest.raises(ValueError, match="rise_s"):
        SlowStartSettings(rise_s=0)


# --- a returned replica ----------------------------------------------------------------------------------


def test_a_replica_that_returns_is_probed_one_call_at_a_time_and_then_taken_back() -> None:
    async def main() -> None:
        service = Service(2, sizes=SHORT)
        victim = service.fleet.replicas[0]
        loading = asyncio.ensure_future(service.load(20.0, calls_per_s=15.0))
        await asyncio.sleep(2.0)
        service.engines[victim].frozen = True
        await service.until_out(victim)
        service.engines[victim].frozen = False
        await loading
        assert [event.replica for event in service.sink.of(Returned)] == [victim.name]
        assert len(service.sink.of(Ejected)) == 1
        late = Counter(replica for at, replica, _ in service.went_to if at > 15.0)
        assert late[victim] > 0.2 * sum(late.values())

    run(main())


# --- isolation -------------------------------------------------------------------------------------------


class Bench:
    """An isolating balancer over idle replicas; make it where a loop runs."""

    def __init__(self, count: int = 3, **settings: float) -> None:
        self.replicas = tuple(Replica(f"r{n}") for n in range(count))
        self.ledger = WorkLedger()
        self.rates = Rates(CLOCK)
        inner = LeastWork(self.ledger, self.rates)
        self.isolation = Isolation(inner, IsolationSettings(**settings))  # type: ignore[arg-type]

    def send(self, prompt_tokens: int, *, on: Replica | None = None) -> ObservedAttempt:
        work = Work(prompt_tokens, 20)
        replica = on or self.isolation.pick(self.replicas, work=work)
        self.ledger.reserve(replica, work)
        attempt = ObservedAttempt("c", 1, replica, work, Progress(CLOCK), now(), True, lambda error: None)
        self.isolation.started(attempt)
        return attempt


def test_long_prompts_are_packed_and_short_calls_keep_away_from_them() -> None:
    async def main() -> tuple[set[str], set[str]]:
        bench = Bench()
        long = {bench.send(3000).replica.name for _ in range(4)}
        short = {bench.send(100).replica.name for _ in range(12)}
        return long, short

    long, short = run(main())
    assert len(long) == 1
    assert long.isdisjoint(short)


def test_a_replica_is_filled_before_the_next_of_the_share_is_opened_and_more_are_never() -> None:
    async def main() -> list[int]:
        bench = Bench(6, most_active_tokens=6100)
        opened = []
        for _ in range(9):
            bench.send(3000)
            opened.append(len(bench.isolation._held))
        return opened

    assert run(main()) == [1, 1, 2, 2, 2, 2, 2, 2, 2], "two of six; beyond what fits they share those"


def test_a_short_call_goes_to_a_replica_with_long_ones_when_the_others_are_far_more_loaded() -> None:
    async def main() -> list[str]:
        bench = Bench(2, cost_factor=3.0)
        bench.send(1000, on=bench.replicas[0])
        went = []
        for _ in range(40):
            went.append(bench.send(100).replica.name)
        return went

    went = run(main())
    assert set(went[:5]) == {"r1"}
    assert "r0" in went


def test_when_long_ones_have_ended_their_replica_is_like_the_others() -> None:
    async def main() -> None:
        bench = Bench()
        attempts = [bench.send(3000) for _ in range(3)]
        held = attempts[0].replica
        assert bench.isolation.active_long_tokens(held) == 3 * 3020
        for attempt in attempts:
            bench.isolation.ended(attempt, None)
            bench.isolation.ended(attempt, None)
        assert bench.isolation.active_long_tokens(held) == 0
        assert not bench.isolation._held
        assert not bench.isolation._attempts

    run(main())


def test_where_most_prompts_are_long_none_is() -> None:
    """Else all the work would be crowded onto a third of the fleet."""

    async def main() -> tuple[int, bool]:
        bench = Bench()
        for _ in range(64):
            bench.isolation.pick(bench.replicas, work=Work(2000, 20))
        return len({bench.send(2000).replica for _ in range(9)}), bench.isolation.is_long(Work(9000, 20))

    assert run(main()) == (3, True)


def test_a_retry_that_has_nowhere_else_to_go_goes_there() -> None:
    async def main() -> str:
        bench = Bench()
        bench.send(3000, on=bench.replicas[0])
        work = Work(3000, 20)
        return bench.isolation.pick(bench.replicas[1:2], retry=True, work=work).name

    assert run(main()) == "r1"


@pytest.mark.parametrize("seed", range(3))
def test_streams_of_short_calls_are_not_held_up_by_the_prefill_of_long_prompts(seed: int) -> None:
    """One call in six has a prompt of 3,000 tokens, whose prefill takes 0.6 s; undisturbed, a short one takes 0.7 s."""

    async def main(without: tuple[str, ...]) -> float:
        sizes = (*((100, 20),) * 5, (3000, 10))
        service = Service(seed, without=without, sizes=sizes)
        await service.load(30.0, calls_per_s=8.0)
        assert service.failed == 0
        short = [took_s for prompt, took_s in service.answered if prompt == 100]
        return sum(took_s > 1.0 for took_s in short) / len(short)

    held_up, held_up_without = run(main(())), run(main(("isolation",)))
    assert held_up < 0.5 * held_up_without


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("long_prompt_tokens", 0),
        ("times_median", 0.5),
        ("long_share", 0.0),
        ("most_active_tokens", 0),
        ("cost_factor", 0.5),
    ],
)
def test_settings_of_isolation_are_checked_when_they_are_made(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        IsolationSettings(**{field: value})  # type: ignore[arg-type]


def test_random_prompts_never_hold_more_replicas_than_the_share() -> None:
    async def main() -> None:
        rng, bench = random.Random(1), Bench(7, long_share=0.34, most_active_tokens=5000)
        live: list[ObservedAttempt] = []
        for _ in range(500):
            if live and rng.random() < 0.45:
                bench.isolation.ended(live.pop(rng.randrange(len(live))), None)
            else:
                live.append(bench.send(rng.choice([50, 100, 100, 200, 1500, 4000])))
            assert len(bench.isolation._held) <= 2

    run(main())
