"""The limiter: permits, who waits, who is refused with what, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from policies.admission import Admission, AdmissionSettings
from policies.call import Call
from policies.clock import SystemClock
from policies.errors import (
    AttemptTimeout,
    CallRefused,
    CallRejected,
    NoReplica,
    QueueFull,
    QuotaExceeded,
    ReplicaLost,
    WaitedTooLong,
)
from policies.events import Admitted, Refused
from policies.fair_queue import QueueSettings
from policies.limits import Outcome
from policies.priority import Priority
from policies.shares import PriorityShares, ShareSettings
from policies.work import Backlog, Work
from tests.fakes.policy_bench import CLOCK, Remembering, call
from tests.fakes.virtual_time import now, run

CP, C, SP, S = Priority
NO_SHARES = ShareSettings((0, 0, 0, 0))


def settings(*, queue: QueueSettings | None = None, **knobs: Any) -> AdmissionSettings:
    knobs.setdefault("shares", NO_SHARES)
    return AdmissionSettings(queue=queue or QueueSettings(), **knobs)


class Gate:
    """An admission with a limit that a test can move, and calls that last as long as they say."""

    def __init__(
        self, limit: float = 2, knobs: AdmissionSettings | None = None, objective_s: float = 5.0, **more: Any
    ) -> None:
        self.limit = limit
        self.sink = Remembering()
        self.admission = Admission(
            lambda: self.limit,
            objective_s,
            settings=knobs or settings(),
            clock=CLOCK,
            rng=random.Random(1),
            sink=self.sink,
            **more,
        )
        self.begun: list[str] = []
        self.peak = 0

    def send(
        self, name: str, lasts_s: float = 1.0, *, error: Exception | None = None, **fields: Any
    ) -> asyncio.Task[str]:
        async def handler(_: Call) -> str:
            self.begun.append(name)
            self.peak = max(self.peak, self.admission.in_use())
            await asyncio.sleep(lasts_s)
            if error is not None:
                raise error
            return name

        return asyncio.create_task(self.admission(call(name, **fields), handler))

    def assert_empty(self) -> None:
        assert self.admission.in_use() == 0
        assert self.admission.queued() == 0
        assert self.admission.active_tokens == 0
        assert self.admission.backlog() == Backlog()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_as_many_as_the_limit_are_let_in_and_the_rest_follow_as_permits_come_back() -> None:
    async def main() -> list[str]:
        gate = Gate(2)
        tasks = [gate.send(str(n)) for n in range(6)]
        await settle()
        assert gate.begun == ["0", "1"]
        assert (gate.admission.in_use(C), gate.admission.queued(C)) == (2, 4)
        assert gate.admission.backlog(C) == Backlog(4, 400, 80)
        assert gate.admission.backlog(CP) == Backlog()
        await asyncio.gather(*tasks)
        assert now() == pytest.approx(3)
        assert gate.peak == 2
        gate.assert_empty()
        waits = [event.waited_s for event in gate.sink.of(Admitted)]
        assert waits == pytest.approx([0, 0, 1, 1, 2, 2])
        return gate.begun

    assert run(main()) == list("012345")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.SUCCESS),
        (ReplicaLost("cut"), Outcome.IGNORED),
        (CallRejected("bad", status=400), Outcome.IGNORED),
        (NoReplica("none", retry_after_s=1), Outcome.IGNORED),
        (AttemptTimeout("late"), Outcome.DROPPED),
    ],
)
def test_a_permit_is_closed_by_how_its_call_ended(error: Exception | None, outcome: Outcome) -> None:
    async def main() -> None:
        gate = Gate()
        await asyncio.gather(gate.send("x", error=error), return_exceptions=True)
        assert gate.admission.closed == {outcome: 1}
        gate.assert_empty()

    run(main())


def test_a_caller_who_leaves_is_no_news_but_a_deadline_that_cuts_the_call_is_a_drop() -> None:
    async def main() -> None:
        gate = Gate()
        left = gate.send("left", 60)
        cut = gate.send("cut", 60, within_s=2)
        await asyncio.sleep(1)
        left.cancel()
        await asyncio.sleep(1.5)
        cut.cancel()  # as the guard of the deadline does it from outside
        await asyncio.gather(left, cut, return_exceptions=True)
        assert gate.admission.closed == {Outcome.IGNORED: 1, Outcome.DROPPED: 1}
        gate.assert_empty()

    run(main())


def test_a_waiter_who_leaves_gives_its_place_to_the_next() -> None:
    async def main() -> None:
        gate = Gate(1)
        first, second, third = (gate.send(name) for name in "abc")
        await settle()
        second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert gate.begun == ["a", "c"]
        assert now() == pytest.approx(2)
        gate.assert_empty()

    run(main())


def test_leaving_in_the_instant_of_the_grant_leaks_no_permit() -> None:
    async def main() -> None:
        gate = Gate(0)
        gate.limit = 1
        holder = gate.send("holder", 1)
        waiter, next_one = gate.send("waiter"), gate.send("next")
        await settle()
        holder.cancel()
        await asyncio.sleep(
            0
        )  # the holder gives its permit back, the waiter is granted it but has not run yet
        assert gate.admission.in_use() == 1
        waiter.cancel()
        await asyncio.gather(holder, waiter, next_one, return_exceptions=True)
        assert gate.begun == ["holder", "next"]
        gate.assert_empty()

    run(main())


def test_the_more_important_are_let_in_first() -> None:
    async def main() -> list[str]:
        gate = Gate(1)
        tasks = [gate.send("holder")]
        await settle()
        tasks += [gate.send(p.label, 0.1, priority=p) for p in (S, SP, C, CP)]
        await asyncio.gather(*tasks)
        return gate.begun[1:]

    assert run(main()) == ["critical_plus", "critical", "sheddable_plus", "sheddable"]


def test_when_the_queue_is_full_the_newcomer_is_refused_or_displaces_who_matters_less() -> None:
    async def main() -> None:
        gate = Gate(1, settings(queue=QueueSettings(most_calls=2)))
        holder = gate.send("holder", 3)
        await settle()
        old, new = gate.send("old", priority=S), gate.send("new", priority=S)
        await settle()
        with pytest.raises(QueueFull):
            await gate.send("late", priority=S)
        better = gate.send("better", priority=C)
        with pytest.raises(QueueFull, match="displaced"):
            await new
        await asyncio.gather(holder, old, better)
        assert gate.begun == ["holder", "better", "old"]
        assert [event.request_id for event in gate.sink.of(Refused)] == ["late", "new"]
        gate.assert_empty()

    run(main())


def test_the_queue_is_bounded_in_token_work_too() -> None:
    async def main() -> None:
        gate = Gate(1, settings(queue=QueueSettings(most_tokens=1000)))
        tasks = [gate.send("holder")]
        await settle()
        tasks.append(gate.send("fits", work=Work(900, 50)))
        await settle()
        with pytest.raises(QueueFull):
            await gate.send("does not", work=Work(50, 1))
        await asyncio.gather(*tasks)

    run(main())


def test_a_tenant_that_fills_its_share_of_the_queue_while_others_wait_has_used_its_quota() -> None:
    async def main() -> None:
        gate = Gate(1, settings(queue=QueueSettings(most_calls=10), tenant_share=0.5))
        tasks = [gate.send("holder", 0.1)]
        await settle()
        tasks += [gate.send(f"a{n}", 0.1, tenant="a") for n in range(6)]
        await settle()
        tasks.append(gate.send("b", 0.1, tenant="b"))
        await settle()
        with pytest.raises(QuotaExceeded) as caught:
            await gate.send("a9", tenant="a")
        assert caught.value.retry_after_s >= 1
        await asyncio.gather(*tasks)
        assert gate.begun.index("b") <= 2, "and the other does not wait behind the six"

    run(main())


def test_alone_a_tenant_may_fill_the_queue() -> None:
    async def main() -> None:
        gate = Gate(1, settings(queue=QueueSettings(most_calls=4), tenant_share=0.5))
        tasks = [gate.send(f"a{n}", 0.1, tenant="a") for n in range(5)]
        await settle()
        with pytest.raises(QueueFull):
            await gate.send("a9", tenant="a")
        await asyncio.gather(*tasks)

    run(main())


@pytest.mark.parametrize(
    ("within_s", "objective_s", "longest_wait_s", "unloaded_s", "expected_s"),
    [
        (None, 2.0, None, 0.0, 2.0),
        (1.0, 2.0, None, 0.0, 1.0),
        (3.0, 5.0, None, 1.0, 2.0),
        (None, 5.0, 0.5, 0.0, 0.5),
    ],
)
def test_nobody_waits_longer_than_is_of_use(
    within_s: float | None,
    objective_s: float,
    longest_wait_s: float | None,
    unloaded_s: float,
    expected_s: float,
) -> None:
    async def main() -> float:
        knobs = settings(longest_wait_s=longest_wait_s)
        gate = Gate(1, knobs, objective_s, unloaded_ttft_s=lambda _: unloaded_s)
        holder = gate.send("holder", 60)
        await settle()
        with pytest.raises(WaitedTooLong):
            await gate.send("waiter", within_s=within_s)
        at = now()
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
        gate.assert_empty()
        return at

    assert run(main()) == pytest.approx(expected_s, abs=0.06)


def test_who_has_no_time_to_wait_is_told_at_once_but_let_in_where_there_is_room() -> None:
    async def main() -> None:
        gate = Gate(1, unloaded_ttft_s=lambda _: 1.0)
        assert await gate.send("hasty", 0.1, within_s=0.5) == "hasty"
        holder = gate.send("holder", 1)
        await settle()
        before = now()
        with pytest.raises(WaitedTooLong):
            await gate.send("late", within_s=0.5)
        assert now() == before
        await holder

    run(main())


def test_refusals_say_when_the_backlog_will_be_worked_off() -> None:
    async def main() -> list[float]:
        gate = Gate(
            1, settings(queue=QueueSettings(most_calls=1)), drain_s=lambda backlog: 4.0 * backlog.calls
        )
        tasks = [gate.send("holder", 0.1), gate.send("waiter", 0.1)]
        await settle()
        waits = []
        for number in range(50):
            with pytest.raises(QueueFull) as caught:
                await gate.send(str(number))
            waits.append(caught.value.retry_after_s)
        await asyncio.gather(*tasks)
        return waits

    waits = run(main())
    assert all(4 <= wait <= 6 for wait in waits)
    assert len(set(waits)) > 40, "jittered"


def test_the_time_to_come_back_is_bounded() -> None:
    async def main() -> float:
        gate = Gate(1, settings(queue=QueueSettings(most_calls=1)), drain_s=lambda _: float("inf"))
        tasks = [gate.send("holder", 0.1), gate.send("waiter", 0.1)]
        await settle()
        with pytest.raises(CallRefused) as caught:
            await gate.send("x")
        await asyncio.gather(*tasks)
        return caught.value.retry_after_s

    assert run(main()) == 30


# --- shares ------------------------------------------------------------------------------------------------


def test_a_share_is_kept_from_the_less_important_and_used_by_its_own_and_by_better_ones() -> None:
    async def main() -> None:
        gate = Gate(10, settings(shares=ShareSettings((0.1, 0.2, 0.1, 0))))
        await asyncio.gather(*(gate.send(p.label, 0.01, priority=p) for p in Priority))
        low = [gate.send(f"s{n}", 10, priority=S) for n in range(10)]
        await settle()
        assert gate.admission.in_use(S) == 6
        middle = [gate.send(f"c{n}", 10, priority=C) for n in range(10)]
        await settle()
        assert (gate.admission.in_use(S), gate.admission.in_use(C)) == (6, 3)
        high = [gate.send(f"p{n}", 10, priority=CP) for n in range(10)]
        await settle()
        assert [gate.admission.in_use(p) for p in Priority] == [1, 3, 0, 6]
        for task in (*low, *middle, *high):
            task.cancel()
        await asyncio.gather(*low, *middle, *high, return_exceptions=True)
        gate.assert_empty()

    run(main())


def test_a_class_that_is_alone_uses_the_whole_limit() -> None:
    async def main() -> int:
        gate = Gate(10, AdmissionSettings())
        tasks = [gate.send(str(n), priority=S) for n in range(20)]
        await settle()
        used = gate.admission.in_use(S)
        await asyncio.gather(*tasks)
        return used

    assert run(main()) == 10


def test_a_share_is_given_up_when_its_class_has_not_been_seen_for_long() -> None:
    shares = PriorityShares(ShareSettings(hold_s=30))
    shares.seen(CP, 100.0)
    assert shares.room(S, 20, 130.0) == 18
    assert shares.room(S, 20, 130.1) == 20


def test_a_small_limit_is_not_reserved_away() -> None:
    shares = PriorityShares()
    for priority in Priority:
        shares.seen(priority, 0.0)
    assert [shares.room(S, limit, 0.0) for limit in (1, 2, 3, 4)] == [1, 2, 3, 3]


@pytest.mark.parametrize("reserved", [(0.5, 0.5, 0, 0), (-0.1, 0, 0, 0), (0.1, 0.1)])
def test_shares_are_checked(reserved: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="reserved"):
        ShareSettings(reserved)  # type: ignore[arg-type]


# --- the limit moves ---------------------------------------------------------------------------------------


def test_when_the_limit_falls_nobody_is_let_in_until_enough_have_ended() -> None:
    async def main() -> None:
        gate = Gate(6, objective_s=20.0)
        held = [gate.send(f"h{n}", 1 + n) for n in range(6)]
        await settle()
        gate.limit = 2
        late = gate.send("late", 0.1)
        await asyncio.sleep(3.5)
        assert "late" not in gate.begun, "three of six have ended"
        await late
        assert now() == pytest.approx(5.1), "four have: now two are left of a limit of two, and then one"
        await asyncio.gather(*held)

    run(main())


def test_when_the_limit_grows_waiters_are_let_in_without_anybody_telling() -> None:
    async def main() -> None:
        gate = Gate(1)
        tasks = [gate.send(str(n), 10) for n in range(3)]
        await asyncio.sleep(1)
        gate.limit = 3
        await asyncio.sleep(0.06)
        assert len(gate.begun) == 3
        await asyncio.gather(*tasks)

    run(main())


def test_who_knows_that_the_limit_has_grown_can_say_so() -> None:
    async def main() -> None:
        gate = Gate(1)
        tasks = [gate.send(str(n), 1) for n in range(2)]
        await settle()
        gate.limit = 2
        gate.admission.poke()
        await settle()
        assert len(gate.begun) == 2
        await asyncio.gather(*tasks)

    run(main())


def test_with_no_replica_nobody_waits_for_one() -> None:
    """The dispatch below has the right error; and whoever waits is not left to time out."""

    async def main() -> None:
        live = [1]
        gate = Gate(1, live=lambda: live[0])
        holder, waiter = gate.send("holder", 5), gate.send("waiter", 0.1)
        await settle()
        live[0] = 0
        gate.limit = 0
        await waiter
        assert now() < 0.2
        await gate.send("newcomer", 0.1)
        await holder
        gate.assert_empty()

    run(main())


def test_waiting_is_no_busy_loop_and_an_idle_limiter_sets_no_timer() -> None:
    class Counting(SystemClock):
        timers = 0

        def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            Counting.timers += 1
            return super().call_later(delay_s, callback)

    async def main() -> None:
        admission = Admission(lambda: 1.0, settings=settings(), clock=Counting())

        async def handler(_: Call) -> None:
            await asyncio.sleep(1)

        await asyncio.gather(admission(call("a"), handler), admission(call("b"), handler))
        assert Counting.timers <= 1 + 21, "one for the waiter, and one every 50 ms"
        used = Counting.timers
        await asyncio.sleep(100)
        await admission(call("c"), handler)
        assert Counting.timers == used

    run(main())


# --- footprint ---------------------------------------------------------------------------------------------


def test_long_contexts_wait_for_room_in_the_cache_while_short_calls_pass() -> None:
    async def main() -> None:
        gate = Gate(8, settings(most_active_tokens=10_000))
        long = [gate.send(f"long{n}", 1, work=Work(4000, 100)) for n in range(3)]
        await settle()
        short = [gate.send(f"short{n}", 0.5) for n in range(4)]
        await settle()
        assert gate.begun == ["long0", "long1", "short0", "short1", "short2", "short3"]
        assert gate.admission.active_tokens == 2 * 4100 + 4 * 120
        await asyncio.gather(*long, *short)
        assert now() == pytest.approx(2)
        gate.assert_empty()

    run(main())


def test_a_long_call_that_has_aged_is_no_longer_passed() -> None:
    async def main() -> None:
        gate = Gate(20, settings(most_active_tokens=2_000, queue=QueueSettings(age_s=2)), 20.0)
        stop = False
        tasks: list[asyncio.Task[str]] = []

        async def small() -> None:
            while not stop:
                tasks.append(gate.send("short", 0.5, work=Work(150, 50)))
                await asyncio.sleep(0.1)

        load = asyncio.create_task(small())
        await asyncio.sleep(2)
        await gate.send("long", 0.1, work=Work(1500, 100))
        assert now() < 2 + 2 + 1, "it ages for 2 s, and then the short ones drain"
        stop = True
        await asyncio.gather(load, *tasks)
        gate.assert_empty()

    run(main())


def test_what_is_larger_than_everything_is_let_in_when_nothing_else_is_in_flight() -> None:
    async def main() -> None:
        gate = Gate(4, settings(most_active_tokens=1000))
        other = gate.send("other", 1)
        await settle()
        huge = gate.send("huge", 1, work=Work(3000, 100))
        await asyncio.sleep(0.01)
        wide = gate.send("wide", 1, work=Work(10, 10, sequences=16))
        await asyncio.gather(other, huge, wide)
        assert gate.begun == ["other", "huge", "wide"]
        assert now() == pytest.approx(3)

    run(main())


def test_a_wide_call_that_has_aged_makes_nobody_wait_who_matters_more() -> None:
    async def main() -> None:
        gate = Gate(4, settings(queue=QueueSettings(age_s=1)), 60.0)
        held = [gate.send(f"h{n}", 4) for n in range(2)]
        await settle()
        wide = gate.send("wide", 1, priority=S, work=Work(10, 10, sequences=3))
        narrow = gate.send("narrow", 1, priority=S)
        await asyncio.sleep(2.5)
        assert gate.begun == ["h0", "h1"], "its like waits behind it, so that room for it comes"
        await gate.send("critical", 0.1, priority=CP)
        assert now() == pytest.approx(2.6)
        await asyncio.gather(*held, wide, narrow)
        assert gate.begun[3:] == ["wide", "narrow"]

    run(main())


def test_large_calls_keep_to_their_part_of_the_caches_and_hold_up_nobody_else() -> None:
    async def main() -> None:
        gate = Gate(30, settings(most_active_tokens=2000, queue=QueueSettings(age_s=1)), 60.0, live=lambda: 3)
        for _ in range(100):
            await gate.send("before", 0.01)
        large = [gate.send(f"large{n}", 4, work=Work(900, 90)) for n in range(6)]
        await settle()
        assert gate.begun[100:] == ["large0", "large1"], "two fill the cache of one replica, a third of all"
        await asyncio.sleep(2)
        for n in range(10):
            await gate.send(f"short{n}", 0.01)
        assert len(gate.begun) == 112, "large ones that have aged make nobody wait"
        await asyncio.gather(*large)
        assert now() < 16
        gate.assert_empty()

    run(main())


def test_where_most_calls_are_large_they_may_use_every_cache() -> None:
    async def main() -> None:
        gate = Gate(30, settings(most_active_tokens=2000), 60.0, live=lambda: 3)
        for _ in range(300):
            await gate.send("before", 0.01, work=Work(900, 90))
        large = [gate.send(f"large{n}", 1, work=Work(900, 90)) for n in range(6)]
        await settle()
        assert len(gate.begun) == 306
        await asyncio.gather(*large)
        gate.assert_empty()

    run(main())


def test_a_wide_call_is_not_starved_by_narrow_ones_and_does_not_hold_up_better_ones() -> None:
    async def main() -> None:
        gate = Gate(4)
        held = [gate.send(f"h{n}", 1 + n / 10) for n in range(4)]
        await settle()
        wide = gate.send("wide", 1, work=Work(10, 10, sequences=3))
        narrow = gate.send("narrow", 1)
        better = gate.send("better", 0.05, priority=CP)
        await asyncio.gather(*held, wide, narrow, better)
        assert gate.begun[4:] == ["better", "wide", "narrow"]

    run(main())


# --- a queue that stands -----------------------------------------------------------------------------------


async def _overload(
    gate: Gate, seconds: float, priority: Priority, every_s: float
) -> list[BaseException | str]:
    tasks, rng = [], random.Random(2)
    for number in range(int(seconds / every_s)):
        tasks.append(gate.send(f"{priority.label}{number}", rng.uniform(0.2, 0.6), priority=priority))
        await asyncio.sleep(every_s)
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_in_a_standing_queue_the_newest_are_served_and_nobody_waits_in_vain_for_long() -> None:
    """Twice as much comes as can be served. Without the control every call would wait for the whole objective."""

    async def main() -> None:
        gate = Gate(4)
        results = await _overload(gate, 30, S, 0.05)
        done = [one for one in results if isinstance(one, str)]
        assert {type(one) for one in results if not isinstance(one, str)} == {WaitedTooLong}
        assert len(done) >= 0.95 * 30 / 0.1, "no permit is left idle"
        late = [event.waited_s for event in gate.sink.of(Admitted) if event.waited_s > 1.0]
        assert len(late) < 0.1 * len(done)
        gate.assert_empty()

    run(main())


def test_critical_calls_do_not_feel_a_flood_of_sheddable_ones() -> None:
    async def main() -> None:
        gate = Gate(8, AdmissionSettings())
        flood = asyncio.create_task(_overload(gate, 20, S, 0.02))
        critical = await _overload(gate, 20, C, 0.1)
        assert all(isinstance(one, str) for one in critical)
        waits = sorted(e.waited_s for e in gate.sink.of(Admitted) if e.priority == "critical")
        assert waits[int(0.95 * len(waits))] < 0.2
        served = [one for one in await flood if isinstance(one, str)]
        assert len(served) >= 0.9 * (20 * 8 / 0.4 - len(critical)), "what they leave goes to the others"
        gate.assert_empty()

    run(main())


def test_alone_it_needs_nothing_but_a_limit() -> None:
    async def main() -> list[Any]:
        admission = Admission(lambda: 2)

        async def double(one: Call) -> int:
            await asyncio.sleep(0.01)
            return 2 * int(one.request_id)

        waiting: list[Awaitable[int]] = [admission(Call(str(n)), double) for n in range(5)]
        return await asyncio.gather(*waiting)

    assert run(main()) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "wrong", [{"tenant_share": 0}, {"large_share": 2}, {"poll_s": 0}, {"most_active_tokens": 0}]
)
def test_settings_say_which_knob_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AdmissionSettings(**wrong)
    with pytest.raises(ValueError, match="objective_s"):
        Admission(lambda: 1, 0)
