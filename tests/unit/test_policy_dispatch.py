"""Which replica an attempt goes to, what is booked and reported, and when a call is refused at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from policies.balance import Balancer, LeastWork, RoundRobin
from policies.call import Attempt, Call, compose
from policies.dispatch import Dispatch
from policies.early_rejection import EarlyRejection
from policies.errors import NoReplica, Overloaded, ReplicaLost
from policies.events import AttemptEnded, AttemptFirstToken, AttemptHeaders, AttemptStarted, Refused
from policies.fleet import Fleet, Replica
from policies.outlier import OutlierDetection
from policies.rates import RatePriors, Rates
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import run


class Bench:
    """A fleet with its accounts; make it where a loop runs."""

    def __init__(self, count: int = 3, *, balancer: Balancer | None = None) -> None:
        self.sink = Remembering()
        self.replicas = tuple(Replica(f"r{n}") for n in range(count))
        self.fleet = Fleet(self.replicas)
        self.ledger = WorkLedger()
        self.rates = Rates(CLOCK, RatePriors(slots=4))
        self.outlier = OutlierDetection(self.fleet, clock=CLOCK, rng=random.Random(1))
        self.dispatch = Dispatch(
            self.fleet,
            balancer or LeastWork(self.ledger, self.rates),
            ledger=self.ledger,
            rates=self.rates,
            clock=CLOCK,
            sink=self.sink,
            outlier=self.outlier,
        )

    async def went_to(self, one: Call | None = None) -> str:
        """Make one attempt and return the name of its replica."""
        script = Script()
        await compose([self.dispatch], script)(one or call())
        attempt = script.attempts[0].attempt
        assert attempt is not None
        assert attempt.replica is not None
        return attempt.replica.name


def test_round_robin_takes_turns() -> None:
    async def main() -> list[str]:
        bench = Bench(balancer=RoundRobin())
        return [await bench.went_to() for _ in range(6)]

    assert run(main()) == ["r0", "r1", "r2"] * 2


def test_the_replica_with_the_least_outstanding_token_work_is_chosen() -> None:
    async def main() -> str:
        bench = Bench()
        bench.ledger.reserve(bench.replicas[0], Work(3000, 10))
        for _ in range(3):
            bench.ledger.reserve(bench.replicas[1], Work(10, 10))
        bench.ledger.reserve(bench.replicas[2], Work(10, 2000))
        return await bench.went_to()

    assert run(main()) == "r1", "three small calls are less work than one large one"


def test_replicas_that_are_level_take_turns() -> None:
    async def main() -> Counter[str]:
        bench = Bench()
        return Counter([await bench.went_to() for _ in range(30)])

    assert set(run(main()).values()) == {10}


@pytest.mark.parametrize("kind", ["round robin", "least work"])
def test_a_retry_does_not_take_the_turn_of_the_next_call(kind: str) -> None:
    """Else each call would begin with the dead one of two replicas: its retry would take the other's turn."""

    async def main() -> list[str]:
        bench = Bench(2)
        balancer = RoundRobin() if kind == "round robin" else LeastWork(bench.ledger, bench.rates)
        firsts = []
        for _ in range(6):
            first = balancer.pick(bench.replicas)
            firsts.append(first.name)
            if first is bench.replicas[0]:
                balancer.pick([bench.replicas[1]], retry=True)
        return firsts

    assert sorted(run(main())) == ["r0"] * 3 + ["r1"] * 3


def test_a_retry_goes_to_a_replica_not_yet_tried_and_never_back_to_the_one_that_just_failed() -> None:
    async def main() -> list[set[str]]:
        bench = Bench()
        a, b, c = bench.replicas
        found = []
        for avoid in ((a,), (a, b), (a, b, c)):
            retry = call().trying(Attempt(2, avoid=avoid))
            found.append({await bench.went_to(retry) for _ in range(12)})
        return found

    assert run(main()) == [{"r1", "r2"}, {"r2"}, {"r0", "r1"}]


def test_an_ejected_replica_is_tried_when_it_is_the_only_other_one() -> None:
    async def main() -> str:
        bench = Bench(2)
        for _ in range(3):
            bench.outlier.failed(bench.replicas[1], ReplicaLost("cut"))
        return await bench.went_to(call().trying(Attempt(2, avoid=(bench.replicas[0],))))

    assert run(main()) == "r1"


def test_a_lone_replica_that_failed_is_not_tried_again() -> None:
    async def main() -> None:
        bench = Bench(1)
        with pytest.raises(NoReplica):
            await bench.went_to(call().trying(Attempt(2, avoid=bench.replicas)))

    run(main())


def test_without_replicas_a_call_is_refused_at_once_and_told_when_to_come_back() -> None:
    async def main() -> list[str]:
        bench = Bench(0)
        with pytest.raises(NoReplica) as caught:
            await bench.went_to()
        with pytest.raises(NoReplica) as again:
            bench.dispatch.require_replica("c")
        first_s, second_s = caught.value.retry_after_s, again.value.retry_after_s
        assert 2.0 <= first_s <= 3.0
        assert 2.0 <= second_s <= 3.0
        assert first_s != second_s, "not all at once"
        return [event.reason for event in bench.sink.of(Refused)]

    assert run(main()) == ["no_replica"] * 2


def test_an_attempt_is_reported_from_start_to_end() -> None:
    async def answer(one: Call) -> str:
        assert one.attempt is not None
        one.attempt.progress.headers()
        for _ in range(3):
            await asyncio.sleep(0.25)
            one.attempt.progress.tokens()
        return "answer"

    async def main() -> Remembering:
        bench = Bench(1)
        await compose([bench.dispatch], Script(answer))(call("id"))
        assert bench.ledger.total.attempts == 0
        return bench.sink

    assert run(main()).events == [
        AttemptStarted("id", 1, "r0", 120),
        AttemptHeaders("id", 1, "r0"),
        AttemptFirstToken("id", 1, "r0", 0.25),
        AttemptEnded("id", 1, "r0", "ok"),
    ]


def test_a_failed_attempt_names_its_replica_and_counts_against_it() -> None:
    async def main() -> tuple[str, list[str]]:
        bench = Bench(2)
        for _ in range(6):
            with pytest.raises(ReplicaLost) as caught:
                await compose([bench.dispatch], Script(ReplicaLost("cut")))(call())
        assert caught.value.replica in bench.replicas
        return bench.sink.of(AttemptEnded)[0].error, [one.name for one in bench.dispatch.rotation()]

    error, rotation = run(main())
    assert error == "ReplicaLost"
    assert len(rotation) == 1


def test_a_cancelled_attempt_gives_its_work_back_and_counts_against_nobody() -> None:
    async def main() -> list[str]:
        bench = Bench(1)
        for _ in range(10):
            task = asyncio.ensure_future(compose([bench.dispatch], Script(hang))(call()))
            await asyncio.sleep(1)
            assert bench.ledger.total.tokens == 120
            task.cancel()
            await asyncio.wait([task])
            assert bench.ledger.total.tokens == bench.ledger.total.attempts == 0
        assert not bench.outlier._records
        return [event.outcome for event in bench.sink.of(AttemptEnded)]

    assert run(main()) == ["cancelled"] * 10


# --- suspicion -------------------------------------------------------------------------------------------


async def hang(_: Call) -> None:
    await asyncio.sleep(1e6)


def test_after_an_unusual_silence_calls_go_elsewhere_before_any_time_out_has_struck() -> None:
    """A host that is gone says nothing: its address swallows one call and not every third one."""

    async def main() -> list[str]:
        bench = Bench(balancer=RoundRobin())
        black = asyncio.ensure_future(compose([bench.dispatch], Script(hang))(call()))
        await asyncio.sleep(0.2)
        found = [await bench.went_to() for _ in range(6)]
        black.cancel()
        await asyncio.wait([black])
        return [*found, *[await bench.went_to() for _ in range(3)]]

    chosen = run(main())
    assert set(chosen[:6]) == {"r1", "r2"}
    assert set(chosen[6:]) == {"r0", "r1", "r2"}, "nothing is held against it once nobody waits"


def test_when_all_are_silent_none_is_left_out() -> None:
    async def main() -> set[str]:
        bench = Bench(balancer=RoundRobin())
        waiting = [asyncio.ensure_future(compose([bench.dispatch], Script(hang))(call())) for _ in range(3)]
        await asyncio.sleep(5)
        found = {await bench.went_to() for _ in range(6)}
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return found

    assert run(main()) == {"r0", "r1", "r2"}


def test_a_slow_network_is_not_silence() -> None:
    """Where headers always take half a second, half a second is the usual."""

    async def slow(one: Call) -> None:
        assert one.attempt is not None
        await asyncio.sleep(0.5)
        one.attempt.progress.headers()

    async def main() -> bool:
        bench = Bench(1)
        for _ in range(100):
            await compose([bench.dispatch], Script(slow))(call())
        asyncio.ensure_future(compose([bench.dispatch], Script(slow))(call()))  # noqa: RUF006
        await asyncio.sleep(0.4)
        return bench.dispatch._silence.is_silent(bench.replicas[0])

    assert run(main()) is False


def test_a_replica_that_has_just_failed_gets_one_call_at_a_time_until_that_has_its_first_token() -> None:
    async def main() -> tuple[list[str], list[str]]:
        bench = Bench(balancer=RoundRobin())
        bench.outlier.failed(bench.replicas[0], ReplicaLost("cut"))
        probe = bench.ledger.reserve(bench.replicas[0], Work(100, 20))
        while_it_waits = [await bench.went_to() for _ in range(4)]
        probe.tokens(1)
        while_it_streams = [await bench.went_to() for _ in range(3)]
        return while_it_waits, while_it_streams

    waits, streams = run(main())
    assert "r0" not in waits
    assert "r0" in streams


def test_suspicion_leaves_nothing_behind() -> None:
    async def main() -> None:
        bench = Bench()
        for _ in range(50):
            task = asyncio.ensure_future(compose([bench.dispatch], Script(hang))(call()))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
        assert not bench.dispatch._silence._waiting

    run(main())


# --- early rejection -------------------------------------------------------------------------------------


def rejection(bench: Bench, objective_s: float = 2.0) -> EarlyRejection:
    return EarlyRejection(
        objective_s,
        rotation=bench.dispatch.rotation,
        ledger=bench.ledger,
        rates=bench.rates,
        rng=random.Random(1),
        sink=bench.sink,
    )


def fill(bench: Bench, output_tokens: int, calls: int = 8) -> None:
    for replica in bench.replicas:
        for _ in range(calls):
            bench.ledger.reserve(replica, Work(100, output_tokens))


def test_a_call_whose_first_token_would_be_late_is_refused_with_a_time_to_come_back() -> None:
    async def main() -> Overloaded:
        bench = Bench()
        fill(bench, 400)
        script = Script()
        with pytest.raises(Overloaded) as caught:
            await compose([rejection(bench)], script)(call())
        assert not script.attempts
        assert [event.reason for event in bench.sink.of(Refused)] == ["overloaded"]
        return caught.value

    error = run(main())
    assert error.predicted_s > 2.0
    assert 1.0 <= error.retry_after_s <= 30.0


def test_the_callers_own_deadline_counts_when_it_is_shorter() -> None:
    async def main() -> None:
        bench = Bench()
        fill(bench, 60)
        handler = compose([rejection(bench, objective_s=60)], Script())
        assert await handler(call()) == "answer"
        with pytest.raises(Overloaded):
            await handler(call(within_s=0.5))

    run(main())


def test_one_replica_with_room_is_enough() -> None:
    async def main() -> str:
        bench = Bench()
        fill(bench, 400)
        newcomer = Replica("new")
        bench.fleet.update([*bench.replicas, newcomer])
        bench.ledger.reserve(newcomer, Work(10, 10))
        return await compose([rejection(bench)], Script())(call())  # type: ignore[no-any-return]

    assert run(main()) == "answer"


def test_an_idle_replica_admits_whatever_the_prediction_says() -> None:
    """Rates that were learned in a bad hour must be able to heal: somebody has to be let in to measure them."""

    async def main() -> str:
        bench = Bench(1)
        for _ in range(500):
            bench.rates.first_token(100, 60.0)
        assert bench.rates.predicted_ttft_s(bench.ledger.at(bench.replicas[0]), 100) > 2.0
        return await compose([rejection(bench)], Script())(call())  # type: ignore[no-any-return]

    assert run(main()) == "answer"


def test_without_replicas_it_leaves_the_refusal_to_who_looks_for_one() -> None:
    async def main() -> None:
        bench = Bench(0)
        with pytest.raises(NoReplica):
            await compose([rejection(bench), bench.dispatch], Script())(call())

    run(main())


def test_ejected_replicas_are_not_predicted_with() -> None:
    async def main() -> None:
        bench = Bench(2)
        for _ in range(8):
            bench.ledger.reserve(bench.replicas[0], Work(100, 400))
        for _ in range(3):
            bench.outlier.failed(bench.replicas[1], ReplicaLost("cut"))
        with pytest.raises(Overloaded):
            await compose([rejection(bench)], Script())(call())

    run(main())


def test_a_burst_is_counted_call_by_call_before_any_of_it_is_answered() -> None:
    """Parallel calls that all look before any is booked would all be let in (fault 7 of docs/faults.md)."""

    async def hang(_: Call) -> None:
        await asyncio.sleep(1000)

    async def main() -> tuple[int, int]:
        bench = Bench(1)
        handler = compose([rejection(bench, 1.0), bench.dispatch], Script(*[hang] * 500))
        tasks = [asyncio.ensure_future(handler(call(str(n), work=Work(100, 100)))) for n in range(500)]
        await asyncio.sleep(1)
        admitted = bench.ledger.total.attempts
        refused = sum(isinstance(task.exception(), Overloaded) for task in tasks if task.done())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return admitted, refused

    admitted, refused = run(main())
    assert admitted + refused == 500
    assert 4 <= admitted < 20
