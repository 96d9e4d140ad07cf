"""Who waits and who is next: priorities, ageing, turns between tenants, bounds."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from policies.fair_queue import FairQueue, QueueSettings, Waiter
from policies.priority import Priority
from policies.work import Backlog, Work

P = Priority
CP, C, SP, S = Priority
STRICT = QueueSettings(age_s=math.inf, least_share=0)


def waiter(
    priority: Priority = C, tenant: str = "", *, tokens: int = 100, since: float = 0.0, large: bool = False
) -> Waiter:
    return Waiter(priority, tenant, Work(tokens, 0), since, large=large)


def filled(*waiters: Waiter, settings: QueueSettings = STRICT) -> FairQueue[Waiter]:
    queue = FairQueue[Waiter](settings)
    for one in waiters:
        queue.add(one, one.since)
    return queue


def served(queue: FairQueue[Waiter], now: float = 0.0, count: int | None = None) -> list[Waiter]:
    order = []
    while len(queue) and (count is None or len(order) < count):
        order.append(next(queue.in_turn(now)))
        queue.serve(order[-1], now)
    return order


def test_the_more_important_go_first_and_equals_in_the_order_in_which_they_came() -> None:
    waiters = [waiter(p, since=n / 100) for n, p in enumerate((S, C, SP, CP, C, S))]
    order = served(filled(*waiters))
    assert [one.priority for one in order] == [CP, C, C, SP, S, S]
    assert [one.since for one in order if one.priority is C] == [0.01, 0.04]


def test_a_waiter_rises_one_priority_each_time_it_has_aged() -> None:
    queue = filled(waiter(S, since=0), waiter(C, since=3.9), settings=QueueSettings(age_s=2, least_share=0))
    assert next(queue.in_turn(3.95)).priority is C
    queue.add(waiter(C, since=4.1), 4.1)
    assert next(queue.in_turn(4.2)).priority is S, (
        "after 2 * 2 s it ranks with critical calls, and came before them"
    )
    queue.add(waiter(CP, since=4.2), 4.2)
    assert next(queue.in_turn(4.3)).priority is CP
    assert next(queue.in_turn(6.1)).priority is S


def test_a_least_share_goes_to_those_that_would_get_nothing() -> None:
    queue = filled(settings=QueueSettings(age_s=math.inf, least_share=0.05))
    queue.add(waiter(S), 0)
    queue.add(waiter(S), 0)
    got: Counter[Priority] = Counter()
    for _ in range(41):
        queue.add(waiter(C), 0)
        queue.add(waiter(C), 0)
        got.update(one.priority for one in served(queue, count=1))
    assert got == {C: 40, S: 1}


def test_tenants_take_turns_by_token_work_not_by_calls() -> None:
    """One sends 50 calls of 100 tokens, another 50 of 500: in the end both have been given as much."""
    queue = filled(
        *(waiter(tenant="small", tokens=100) for _ in range(50)),
        *(waiter(tenant="large", tokens=500) for _ in range(50)),
    )
    given: Counter[str] = Counter()
    for one in served(queue, count=36):
        given[one.tenant] += one.work.tokens
    assert given["small"] == pytest.approx(given["large"], abs=500)


def test_a_newcomer_is_served_before_the_thousandth_call_of_another() -> None:
    queue = filled(*(waiter(tenant="flood", since=n / 1000) for n in range(1000)))
    served(queue, count=10)
    queue.add(waiter(tenant="new", since=2), 2)
    assert "new" in [one.tenant for one in served(queue, count=2)]


def test_nobody_saves_up_turns_by_staying_away() -> None:
    queue = filled(*(waiter(tenant="steady") for _ in range(300)))
    served(queue, count=200)
    for _ in range(50):
        queue.add(waiter(tenant="back"), 1)
    turns = Counter(one.tenant for one in served(queue, count=20))
    assert turns == {"steady": 10, "back": 10}


def test_who_used_less_than_was_charged_gets_the_difference_back() -> None:
    queue = filled(*(waiter(tenant=t, tokens=1000) for t in "ab" for _ in range(20)))
    first = served(queue, count=1)[0]
    queue.settle(first, 10)
    assert [first.tenant, *(one.tenant for one in served(queue, count=3))] == ["a", "b", "a", "b"]
    heavy = served(queue, count=1)[0]
    queue.settle(heavy, 5000)
    other = "b" if heavy.tenant == "a" else "a"
    assert [one.tenant for one in served(queue, count=3)] == [other] * 3


def test_calls_that_need_not_wait_are_charged_too_but_do_not_pile_up_debts() -> None:
    queue = filled()
    for _ in range(100):
        queue.passed(waiter(tenant="busy"))
    for tenant in ("busy", "new"):
        for _ in range(10):
            queue.add(waiter(tenant=tenant), 0)
    turns = Counter(one.tenant for one in served(queue, count=10))
    assert abs(turns["busy"] - turns["new"]) <= 2


def test_the_newest_go_first_while_the_queue_stands_and_the_oldest_again_once_it_does_not() -> None:
    queue = filled(*(waiter(since=n / 10) for n in range(5)))
    assert next(queue.in_turn(0.5)).since == 0.0
    queue.tick(5.0)
    assert queue.is_overloaded(C)
    assert not queue.is_overloaded(S)
    queue.add(waiter(since=5.0), 5.0)
    assert next(queue.in_turn(5.0)).since == 5.0
    while (old := queue.hopeless(5.0)) is not None:
        queue.remove(old, 5.0)
    assert [one.since for one in served(queue, 5.0)] == [5.0]
    queue.add(waiter(since=6.0), 6.0)
    queue.add(waiter(since=6.1), 6.1)
    assert next(queue.in_turn(6.1)).since == 6.0


def test_less_important_waiters_of_a_standing_queue_are_given_up_sooner() -> None:
    queue = filled(*(waiter(priority) for priority in Priority), *(waiter(p, since=99) for p in Priority))
    queue.tick(1.5)
    gone = []
    for tenth in range(15, 100):
        while (old := queue.hopeless(tenth / 10)) is not None:
            gone.append((old.priority, tenth / 10))
            queue.remove(old, tenth / 10)
    assert [priority for priority, _ in gone] == [S, SP, C, CP]
    assert [at for _, at in gone] == [1.5, 1.6, 3.1, 6.1]


def test_calls_of_a_large_footprint_have_a_lane_of_their_own() -> None:
    large, small = waiter(since=0, large=True), waiter(since=1)
    queue = filled(large, small)
    assert list(queue.in_turn(2)) == [large, small]


def test_the_queue_is_bounded_in_calls_and_in_tokens_but_never_refuses_the_only_one() -> None:
    settings = QueueSettings(most_calls=3, most_tokens=1000)
    queue = filled(settings=settings)
    assert queue.has_room(Work(5000, 0))
    queue.add(waiter(tokens=800), 0)
    assert queue.has_room(Work(200, 0))
    assert not queue.has_room(Work(200, 1))
    queue.add(waiter(tokens=1), 0)
    queue.add(waiter(tokens=1), 0)
    assert not queue.has_room(Work(1, 0))


def test_the_least_important_and_most_recent_are_displaced_and_only_if_that_is_enough() -> None:
    settings = QueueSettings(most_calls=4, most_tokens=1000)
    old, new, better = waiter(S, since=0), waiter(S, since=1), waiter(SP, since=2)
    queue = filled(old, new, better, waiter(C, tokens=600), settings=settings)
    assert queue.displaceable(C, Work(100, 0)) == [new]
    assert queue.displaceable(C, Work(250, 0)) == [new, old]
    assert queue.displaceable(C, Work(900, 0)) == []
    assert queue.displaceable(S, Work(1, 0)) == []
    assert queue.displaceable(SP, Work(100, 0)) == [new]


def test_the_share_of_a_tenant_is_of_calls_or_of_tokens_whichever_is_more() -> None:
    queue = filled(
        *(waiter(tenant="a", tokens=1) for _ in range(5)),
        waiter(tenant="b", tokens=300),
        settings=QueueSettings(most_calls=10, most_tokens=1000),
    )
    assert queue.share_of("a") == 0.5
    assert queue.share_of("b") == 0.3
    assert queue.share_of("c") == 0
    assert not queue.holds_only("a")
    served(queue)
    assert queue.share_of("a") == 0
    assert queue.holds_only("a")


def test_the_backlog_is_told_down_to_a_priority() -> None:
    queue = filled(waiter(CP, tokens=1), waiter(C, tokens=10), waiter(S, tokens=100, large=True))
    assert queue.backlog(C) == Backlog(2, 11, 0)
    assert queue.backlog() == Backlog(3, 111, 0)
    assert queue.calls(S) == 1
    assert queue.tokens == 111


def test_tenants_that_do_not_wait_are_forgotten_beyond_a_bound() -> None:
    queue = filled(settings=QueueSettings(most_tenants=10))
    for number in range(1000):
        queue.passed(waiter(tenant=str(number)))
        queue.add(waiter(tenant=f"w{number}"), 0)
    served(queue)
    lane = queue._lanes[C][False]
    assert len(lane._idle) <= 10
    assert len(lane._busy) == 0
    assert len(lane._heap) < 100
    assert not queue._held


def test_storms_of_cancels_leave_no_garbage() -> None:
    queue, rng = filled(), random.Random(3)
    keep = [waiter(tenant=str(n % 7)) for n in range(7)]
    for one in keep:
        queue.add(one, 0)
    for _ in range(200):
        storm = [waiter(tenant=str(rng.randrange(50))) for _ in range(50)]
        for one in storm:
            queue.add(one, 0)
        rng.shuffle(storm)
        for one in storm:
            queue.remove(one, 0)
    lane = queue._lanes[C][False]
    assert len(lane._heap) <= 2 * 7 + 65 + 50
    assert len(queue) == 7
    assert {one.tenant for one in served(queue)} == set("0123456")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"most_calls": 0}, "most_calls"),
        ({"most_tokens": 0}, "most_tokens"),
        ({"age_s": 0}, "age_s"),
        ({"least_share": 0.5}, "least_share"),
        ({"target_share": 0.3}, "target_share"),
        ({"most_tenants": 0}, "most_tenants"),
    ],
)
def test_settings_say_which_knob_is_wrong(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        QueueSettings(**wrong)  # type: ignore[arg-type]
