"""The ladder around a handler: where a call starts, what it is tried at, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policies.call import FULL, Call
from policies.degradation import Degradation
from policies.errors import (
    BreakerOpen,
    CallRefused,
    CallRejected,
    NoReplica,
    Overloaded,
    QueueFull,
    QuotaExceeded,
    ReplicaLost,
    RungMissed,
    WaitedTooLong,
)
from policies.events import Degraded, LevelChanged
from policies.ladder import (
    CACHED,
    DEFERRED,
    NO_TOOLS,
    REFUSE,
    RUNGS,
    SHORT_CONTEXT,
    SHORT_OUTPUT,
    SMALL_MODEL,
    ClassRungs,
)
from policies.priority import Priority
from policies.work import Work
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import run


class Parts:
    """A payload that is a list of rungs; each rung adds its name, unless it is in ``nothing``."""

    def __init__(self, *nothing: str) -> None:
        self.nothing = nothing
        self.asked: list[str] = []

    def at(self, one: Call, rung: str) -> Call | None:
        self.asked.append(rung)
        return None if rung in self.nothing else replace(one, payload=(*(one.payload or ()), rung))


class Pressed:
    """A pressure that a test sets."""

    def __init__(self, pressure: float = 0.0) -> None:
        self.pressure = pressure
        self.noted: list[tuple[Work, Work]] = []

    def read(self) -> tuple[float, str]:
        return self.pressure, "test"

    def served(self, asked: Work, given: Work) -> None:
        self.noted.append((asked, given))


def refused(kind: type[CallRefused] = QueueFull) -> CallRefused:
    if kind is Overloaded:
        return Overloaded("no", retry_after_s=1.0, predicted_s=9.0)
    return kind("no", retry_after_s=1.0)


def sheddable(request_id: str = "c", **fields: Any) -> Call:
    return call(request_id, priority=Priority.SHEDDABLE, **{"degradable": Parts(), **fields})


async def at_level(
    level: int, pressed: Pressed | None = None, **options: Any
) -> tuple[Degradation, Remembering]:
    """A ladder that has gone down that many rungs."""
    sink, pressed = Remembering(), pressed or Pressed()
    ladder = Degradation(pressure=pressed, clock=CLOCK, sink=sink, **options)
    pressed.pressure = 2.0
    while ladder.level < level:
        await ladder(call(), Script())
        await asyncio.sleep(0.25)
    pressed.pressure = 0.9
    sink.events.clear()
    return ladder, sink


def test_a_call_that_is_not_pressed_is_left_alone() -> None:
    async def main() -> None:
        sink, one, script = Remembering(), sheddable(), Script()
        assert await Degradation(clock=CLOCK, sink=sink)(one, script) == "answer"
        assert script.attempts == [one]
        assert one.delivery.rung == FULL
        assert sink.events == []
        assert one.degradable.asked == []  # type: ignore[union-attr]

    run(main())


@pytest.mark.parametrize("level", range(5))
def test_a_call_starts_at_the_rung_of_the_level_with_all_above_it(level: int) -> None:
    async def main() -> None:
        ladder, sink = await at_level(level)
        one, script = sheddable(), Script()
        await ladder(one, script)
        assert (script.attempts[0].payload or ()) == RUNGS[1 : level + 1]
        assert one.delivery.rung == RUNGS[level]
        assert [event.rung for event in sink.of(Degraded)] == ([RUNGS[level]] if level else [])

    run(main())


def test_a_rung_that_changes_nothing_is_skipped() -> None:
    async def main() -> None:
        ladder, sink = await at_level(3)
        one, script = sheddable(degradable=Parts(SHORT_CONTEXT, NO_TOOLS)), Script(refused(), refused())
        with pytest.raises(QueueFull):
            await ladder(one, script)
        assert [attempt.payload for attempt in script.attempts] == [
            (SHORT_OUTPUT,),
            (SHORT_OUTPUT, SMALL_MODEL),
        ]
        assert [event.rung for event in sink.of(Degraded)] == [SHORT_OUTPUT, SMALL_MODEL]

    run(main())


@pytest.mark.parametrize(
    ("kind", "rungs"),
    [(Overloaded, [0, 1, 2, 3, 4]), (QueueFull, [0, 1, 2, 3, 4]), (WaitedTooLong, [0, 4])],
)
def test_a_refused_call_is_tried_once_at_each_lower_rung(kind: type[CallRefused], rungs: list[int]) -> None:
    """At the lowest at once, when it has waited: it would wait again at each."""

    async def main() -> None:
        sink, one, script = Remembering(), sheddable(), Script(*(refused(kind) for _ in range(9)))
        with pytest.raises(kind):
            await Degradation(clock=CLOCK, sink=sink)(one, script)
        tried = [len(attempt.payload or ()) for attempt in script.attempts]
        assert tried == rungs
        assert one.delivery.rung == REFUSE

    run(main())


def test_the_answer_of_a_lower_rung_is_taken() -> None:
    async def main() -> None:
        one, script = sheddable(), Script(refused(), refused())
        assert await Degradation(clock=CLOCK)(one, script) == "answer"
        assert one.delivery.rung == SHORT_CONTEXT

    run(main())


@pytest.mark.parametrize("kind", [QuotaExceeded, NoReplica, BreakerOpen])
def test_a_refusal_that_asking_for_less_cannot_mend_is_final(kind: type[CallRefused]) -> None:
    async def main() -> None:
        sink, one, script = Remembering(), sheddable(), Script(refused(kind))
        with pytest.raises(kind):
            await Degradation(clock=CLOCK, sink=sink)(one, script)
        assert len(script.attempts) == 1
        assert sink.of(LevelChanged) == []
        assert one.delivery.rung == REFUSE

    run(main())


@pytest.mark.parametrize(
    "error", [ReplicaLost("cut"), CallRejected("wrong", status=400), asyncio.CancelledError()]
)
def test_what_is_no_refusal_passes(error: BaseException) -> None:
    async def main() -> None:
        one, script = sheddable(), Script(error)
        with pytest.raises(type(error)):
            await Degradation(clock=CLOCK)(one, script)
        assert len(script.attempts) == 1
        assert one.delivery.rung == FULL

    run(main())


def test_nothing_is_tried_again_once_part_of_the_answer_is_out() -> None:
    async def begun(one: Call) -> None:
        one.delivery.started = True
        raise refused()

    async def main() -> None:
        script = Script(begun)
        with pytest.raises(QueueFull):
            await Degradation(clock=CLOCK)(sheddable(), script)
        assert len(script.attempts) == 1

    run(main())


@pytest.mark.parametrize(
    ("priority", "rungs"),
    [
        (Priority.CRITICAL_PLUS, [0, 1]),
        (Priority.CRITICAL, [0, 1, 2]),
        (Priority.SHEDDABLE_PLUS, [3]),
        (Priority.SHEDDABLE, [4]),
    ],
)
def test_critical_work_is_lessened_only_where_it_would_be_refused(
    priority: Priority, rungs: list[int]
) -> None:
    async def main() -> None:
        ladder, _ = await at_level(4)
        script = Script(*(refused() for _ in range(9)))
        with pytest.raises(QueueFull):
            await ladder(call(priority=priority, degradable=Parts()), script)
        assert [len(attempt.payload or ()) for attempt in script.attempts] == rungs

    run(main())


def test_a_class_goes_before_the_priority() -> None:
    async def main() -> None:
        ladder, _ = await at_level(
            4, classes={"fraud": ClassRungs(lowest=FULL), "batch": ClassRungs.down_to(SMALL_MODEL)}
        )
        fraud = sheddable(service_class="fraud")
        with pytest.raises(QueueFull):
            await ladder(fraud, Script(refused()))
        batch = call(priority=Priority.CRITICAL, service_class="batch", degradable=Parts())
        await ladder(batch, Script())
        assert batch.delivery.rung == SMALL_MODEL

    run(main())


def test_entitlement_is_asked_again_at_each_rung() -> None:
    async def main() -> None:
        asked: list[str] = []
        revoked: list[str] = []

        def entitled(one: Call, rung: str) -> bool:
            asked.append(rung)
            return rung not in revoked

        async def revoke(_: Call) -> None:
            revoked.append(NO_TOOLS)
            raise refused()

        script = Script(refused(), revoke)
        one = sheddable()
        await Degradation(clock=CLOCK, entitled=entitled)(one, script)
        assert asked == [SHORT_OUTPUT, SHORT_CONTEXT]
        asked.clear()
        script = Script(refused(), revoke, refused())
        await Degradation(clock=CLOCK, entitled=entitled)(one := sheddable(), script)
        assert asked == [SHORT_OUTPUT, SHORT_CONTEXT, NO_TOOLS, SMALL_MODEL]
        assert one.delivery.rung == SMALL_MODEL
        assert script.attempts[-1].payload == (SHORT_OUTPUT, SHORT_CONTEXT, SMALL_MODEL)

    run(main())


def test_a_rung_may_have_somebody_else_answer() -> None:
    async def main() -> None:
        small, pressed = Script(), Pressed()
        ladder, _ = await at_level(4, pressed, handlers={SMALL_MODEL: small})
        pressed.noted.clear()
        main_fleet = Script()
        await ladder(sheddable(), main_fleet)
        assert (len(small.attempts), len(main_fleet.attempts)) == (1, 0)
        assert pressed.noted == [(Work(100, 20), Work())], "it is no work of this fleet"
        await ladder(sheddable(degradable=Parts(SMALL_MODEL)), main_fleet)
        assert (len(small.attempts), len(main_fleet.attempts)) == (1, 1)

    run(main())


MAY_WAIT = {"batch": ClassRungs.down_to(DEFERRED)}


@pytest.mark.parametrize(
    ("kind", "tried"),
    [(QueueFull, 5), (WaitedTooLong, 2), (NoReplica, 1), (BreakerOpen, 1), (QuotaExceeded, 1)],
)
def test_a_call_that_would_be_refused_waits_where_its_class_may(kind: type[CallRefused], tried: int) -> None:
    """For whatever reason, but for its own quota; and the refusal stands where nobody takes it."""

    async def main() -> None:
        queue, script = Script(), Script(*(refused(kind) for _ in range(9)))
        ladder = Degradation(clock=CLOCK, classes=MAY_WAIT, handlers={DEFERRED: queue})
        one = sheddable(service_class="batch")
        if kind is QuotaExceeded:
            with pytest.raises(kind):
                await ladder(one, script)
        else:
            assert await ladder(one, script) == "answer"
            assert one.delivery.rung == DEFERRED
        assert (len(script.attempts), len(queue.attempts)) == (tried, kind is not QuotaExceeded)

    run(main())


def test_nobody_waits_where_the_class_does_not_say_so_or_nobody_takes_it() -> None:
    async def main() -> None:
        for service_class, handlers in (("", {DEFERRED: Script(), CACHED: Script()}), ("batch", {})):
            one = sheddable(service_class=service_class)
            ladder = Degradation(clock=CLOCK, classes=MAY_WAIT, handlers=handlers)
            with pytest.raises(QueueFull):
                await ladder(one, Script(*(refused() for _ in range(9))))
            assert one.delivery.rung == REFUSE
            assert all(not handler.attempts for handler in handlers.values())
            assert DEFERRED not in one.degradable.asked  # type: ignore[union-attr]

    run(main())


def test_a_rung_that_has_nothing_for_a_call_leads_to_the_next_and_keeps_the_refusal() -> None:
    async def main() -> None:
        def missing() -> Script:
            return Script(RungMissed("not cached"))

        queue = Script()
        one = sheddable(service_class="batch")
        ladder = Degradation(clock=CLOCK, classes=MAY_WAIT, handlers={CACHED: missing(), DEFERRED: queue})
        await ladder(one, Script(refused(NoReplica)))
        assert (one.delivery.rung, len(queue.attempts)) == (DEFERRED, 1)
        ladder = Degradation(clock=CLOCK, classes=MAY_WAIT, handlers={CACHED: missing(), DEFERRED: missing()})
        with pytest.raises(NoReplica):
            await ladder(one := sheddable(service_class="batch"), Script(refused(NoReplica)))
        assert one.delivery.rung == REFUSE

    run(main())


def test_the_level_alone_makes_nobody_wait() -> None:
    async def main() -> None:
        queue, script = Script(), Script()
        ladder, _ = await at_level(4, classes=MAY_WAIT, handlers={DEFERRED: queue})
        await ladder(one := sheddable(service_class="batch"), script)
        assert (one.delivery.rung, len(queue.attempts)) == (SMALL_MODEL, 0)

    run(main())


def test_refusals_move_the_level_for_those_who_come_after() -> None:
    async def main() -> None:
        sink = Remembering()
        ladder = Degradation(clock=CLOCK, sink=sink)
        with pytest.raises(QueueFull):
            await ladder(call(degradable=None), Script(refused()))
        assert sink.of(LevelChanged) == [LevelChanged(1, "refusals")]
        script = Script()
        await ladder(sheddable(), script)
        assert script.attempts[0].payload == (SHORT_OUTPUT,)
        await asyncio.sleep(10)
        await ladder(later := sheddable(), Script())
        assert sink.of(LevelChanged)[1:] == [LevelChanged(0, "calm")]
        assert later.delivery.rung == FULL

    run(main())


def test_pressure_is_named_when_it_moves_the_level() -> None:
    async def main() -> None:
        sink = Remembering()
        await Degradation(pressure=Pressed(1.5), clock=CLOCK, sink=sink)(call(), Script())
        assert sink.of(LevelChanged) == [LevelChanged(1, "test")]

    run(main())


def test_what_was_left_out_before_the_ladder_counts_as_its_rung() -> None:
    """The tool phase comes first: a call that has gone without its tool is no better than that rung."""

    async def main() -> None:
        ladder, sink = await at_level(0)
        one, script = sheddable(degradable=Parts(NO_TOOLS)), Script()
        one.delivery.rung = NO_TOOLS
        await ladder(one, script)
        assert one.delivery.rung == NO_TOOLS
        assert script.attempts[0].payload == (SHORT_OUTPUT, SHORT_CONTEXT)
        assert [event.rung for event in sink.of(Degraded)] == [NO_TOOLS]

    run(main())


@pytest.mark.parametrize(
    ("level", "priority", "expected"), [(2, 3, False), (3, 3, True), (4, 3, True), (4, 1, False)]
)
def test_what_comes_before_the_pipeline_can_ask_where_a_call_would_start(
    level: int, priority: int, expected: bool
) -> None:
    async def main() -> bool:
        ladder, _ = await at_level(level)
        return ladder.would_start_at(call(priority=Priority(priority)), NO_TOOLS)

    assert run(main()) is expected


def test_it_asks_whether_one_may_at_all() -> None:
    async def main() -> bool:
        ladder, _ = await at_level(4, entitled=lambda one, rung: False)
        return ladder.would_start_at(sheddable(), NO_TOOLS)

    assert run(main()) is False


def test_it_works_alone_around_any_function() -> None:
    async def handler(one: Call) -> Any:
        return one.request_id

    answered: Callable[..., Any] = Degradation()
    assert run(answered(call("alone"), handler)) == "alone"
