"""Profiles: which policies are on, that each can be switched off, and how they work together."""

from __future__ import annotations

import ast
import asyncio
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import policies
from cluster import public
from policies.call import Call, PassThrough, compose
from policies.early_rejection import EarlyRejection
from policies.errors import AttemptTimeout, DeadlineExceeded, EngineStalled, Overloaded, ReplicaLost
from policies.events import NullSink
from policies.fleet import Fleet, Replica
from policies.parts import EagerSettings, ProfileSettings, Stage, Surroundings
from policies.profiles import (
    OPTIONAL,
    POLICIES,
    PROFILES,
    PROTECTS,
    Pipeline,
    UnknownName,
    active_policies,
    build,
)
from policies.rates import Rates
from policies.work import Work, WorkLedger
from tests.fakes.policy_bench import CLOCK, Remembering, Script, call
from tests.fakes.virtual_time import now, run


def surroundings(count: int = 3, sink: Remembering | None = None) -> Surroundings:
    fleet = Fleet(Replica(f"r{n}") for n in range(count))
    return Surroundings(fleet, WorkLedger(), Rates(CLOCK), CLOCK, random.Random(1), sink or Remembering())


def test_the_names_are_those_that_the_outside_knows() -> None:
    assert POLICIES == public.POLICIES
    assert tuple(PROFILES) == public.PROFILES


def test_every_policy_says_in_one_line_what_it_protects_from() -> None:
    assert set(PROTECTS) == {*POLICIES, *OPTIONAL} == set(public.PROTECTS)
    for name, line in PROTECTS.items():
        assert 10 <= len(line) <= 100, f"{name} says nothing of use in one line: {line!r}"
        assert line[0].islower() or line[0].isdigit(), f"{name}: it goes on after 'protects from'"
        assert not line.endswith("."), name


def test_a_policy_that_says_nothing_cannot_be_added() -> None:
    with pytest.raises(TypeError, match="protects"):
        Stage("silent", lambda parts: PassThrough())  # type: ignore[call-arg]


def test_the_ladder_is_outermost_and_answers_less_before_anybody_refuses() -> None:
    async def main() -> tuple[str, str]:
        around = surroundings(1)
        held = around.ledger.reserve(around.fleet.replicas[0], Work(30_000, 0))

        class Cutting:
            def at(self, one: Call, rung: str) -> Call | None:
                if rung == "short_output":
                    held.release()  # what makes room for the lesser call
                return replace(one, payload=rung)

        one = call(degradable=Cutting())
        answer = await build("resilient", Script(), around)(one)
        return answer, one.delivery.rung

    assert run(main()) == ("answer", "short_output")


def test_naive_has_no_policy_and_resilient_has_all() -> None:
    assert active_policies("naive") == ()
    assert active_policies("resilient") == POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_can_be_switched_off_by_name(name: str) -> None:
    async def main() -> Pipeline[object]:
        return build("resilient", Script(), surroundings(), without=[name])

    pipeline = run(main())
    assert pipeline.active == tuple(one for one in POLICIES if one != name)
    assert pipeline.without == (name,)


def test_optional_policies_are_in_no_profile_and_are_switched_on_by_name() -> None:
    assert not set(OPTIONAL) & {name for names in PROFILES.values() for name in names}
    on = active_policies("resilient", extra=OPTIONAL)
    assert set(on) == {*POLICIES, *OPTIONAL}
    assert active_policies("resilient", without=OPTIONAL, extra=OPTIONAL) == POLICIES
    assert active_policies("naive", extra=["timeouts"]) == ("timeouts",)
    with pytest.raises(UnknownName, match="hedging"):
        active_policies("resilient", extra=["hedge"])


def test_retry_only_is_eager_whatever_the_careful_knobs_say() -> None:
    async def main() -> tuple[int, float]:
        async def hang(_: Call) -> None:
            await asyncio.sleep(3600)

        script = Script(*[hang] * 9)
        knobs = ProfileSettings(max_attempts=2, eager=EagerSettings(max_attempts=4, attempt_s=1.5))
        with pytest.raises(AttemptTimeout, match=r"whole attempt took more than 1\.5 s"):
            await build("retry-only", script, surroundings(), knobs)(call())
        return len(script.attempts), now()

    assert run(main()) == (4, pytest.approx(6.0)), "at once after each other"


@pytest.mark.parametrize(
    ("profile", "without", "nearest"),
    [
        ("resilent", (), "resilient"),
        ("resilient", ("retrys",), "retry"),
        ("resilient", ("eject",), "ejection"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(
    profile: str, without: tuple[str, ...], nearest: str
) -> None:
    with pytest.raises(UnknownName, match=nearest) as caught:
        active_policies(profile, without)
    assert nearest in caught.value.nearest


def test_naive_makes_one_attempt_and_has_no_time_out() -> None:
    async def slow_loss(_: Call) -> None:
        await asyncio.sleep(3600)
        raise ReplicaLost("cut")

    async def main() -> float:
        script = Script(slow_loss)
        pipeline = build("naive", script, surroundings())
        assert pipeline.default_deadline_s is None
        assert pipeline.tool_deadline_s is None
        with pytest.raises(ReplicaLost):
            await pipeline(call())
        assert len(script.attempts) == 1
        return now()

    assert run(main()) == 3600


def test_even_naive_ends_at_the_deadline_that_the_client_named() -> None:
    async def hang(_: Call) -> None:
        await asyncio.sleep(3600)

    async def main() -> float:
        with pytest.raises(DeadlineExceeded):
            await build("naive", Script(hang), surroundings())(call(within_s=7))
        return now()

    assert run(main()) == pytest.approx(7)


def test_resilient_survives_a_replica_that_hangs_and_one_that_is_gone() -> None:
    async def hang(_: Call) -> None:
        await asyncio.sleep(3600)

    async def main() -> tuple[str, set[Replica | None], float]:
        script = Script(hang, ReplicaLost("refused"))
        answer = await build("resilient", script, surroundings())(call())
        used = {one.attempt.replica for one in script.attempts if one.attempt}
        return answer, used, now()

    answer, used, at = run(main())
    assert answer == "answer"
    assert len(used) == 3
    assert 1.0 <= at <= 1.3


@pytest.mark.parametrize(
    ("without", "attempts", "error"),
    [
        (("retry", "stall_watch"), 1, AttemptTimeout),
        (("retry", "timeouts"), 1, EngineStalled),
        (("timeouts", "stall_watch"), 1, DeadlineExceeded),
    ],
)
def test_what_is_switched_off_is_missed(
    without: tuple[str, ...], attempts: int, error: type[Exception]
) -> None:
    async def hang(_: Call) -> None:
        await asyncio.sleep(3600)

    async def main() -> int:
        script = Script(hang)
        with pytest.raises(error):
            await build("resilient", script, surroundings(), without=without)(call(within_s=30))
        return len(script.attempts)

    assert run(main()) == attempts


def test_without_ejection_a_dead_replica_stays_in_rotation() -> None:
    async def main(without: list[str]) -> int:
        around = surroundings(3)

        async def answer(one: Call) -> str:
            assert one.attempt is not None
            if one.attempt.replica is around.fleet.replicas[0]:
                raise ReplicaLost("refused")
            return "answer"

        pipeline = build("resilient", answer, around, without=without)
        for number in range(40):
            assert await pipeline(call(str(number))) == "answer"
            await asyncio.sleep(0.1)
        return len(pipeline.rotation())

    assert run(main([])) == 2
    assert run(main(["ejection"])) == 3


def test_early_rejection_can_be_switched_off() -> None:
    async def main(without: list[str]) -> str:
        around = surroundings(1)
        for _ in range(40):
            around.ledger.reserve(around.fleet.replicas[0], Work(100, 2000))
        return await build("resilient", Script(), around, without=without)(call())  # type: ignore[no-any-return]

    with pytest.raises(Overloaded):
        run(main([]))
    assert run(main(["early_rejection"])) == "answer"


def test_pipelines_share_the_accounts_and_nothing_else() -> None:
    async def main() -> tuple[int, int]:
        around = surroundings(3)
        failing = build("resilient", Script(*(ReplicaLost("cut") for _ in range(60))), around)
        for number in range(10):
            with pytest.raises(ReplicaLost):
                await failing(call(str(number)))
        fresh = build("resilient", Script(), around)
        return len(failing.rotation()), len(fresh.rotation())

    before, after = run(main())
    assert before < 3
    assert after == 3


def test_settings_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="attempt_s=0"):
        EagerSettings(attempt_s=0)
    with pytest.raises(ValueError, match="ttft_objective_s"):
        ProfileSettings(ttft_objective_s=0)
    with pytest.raises(ValueError, match="objective_s"):
        EarlyRejection(0, rotation=tuple, ledger=WorkLedger(), rates=None)  # type: ignore[arg-type]


def test_policies_stack_from_the_outside_in() -> None:
    seen: list[str] = []

    class Named(PassThrough):
        def __init__(self, name: str) -> None:
            self._name = name

        async def __call__(self, call: Call, inner: object, /) -> object:  # type: ignore[override]
            seen.append(self._name)
            return await inner(call)  # type: ignore[operator]

    assert run(_answer(compose([Named("outer"), PassThrough(), Named("inner")], Script()))) == "answer"  # type: ignore[list-item]
    assert seen == ["outer", "inner"]


async def _answer(handler: object) -> object:
    return await handler(call())  # type: ignore[operator]


def test_a_fleet_keeps_what_stays_and_replaces_what_came_back() -> None:
    sink = Remembering()
    fleet = Fleet(sink=sink)
    fleet.update([Replica("a", "h:1"), Replica("b", "h:2")])
    first = fleet.replicas
    fleet.update([Replica("a", "h:1"), Replica("b", "h:9")])
    assert fleet.replicas[0] is first[0]
    assert fleet.replicas[1] is not first[1]
    assert first[1] not in fleet
    assert sink.names() == ["upstream_added"] * 2 + ["upstream_removed", "upstream_added"]
    with pytest.raises(ValueError, match="in common"):
        fleet.update([Replica("a", "h:1"), Replica("a", "h:2")])


def test_the_package_needs_nothing_but_the_standard_library() -> None:
    folder = Path(policies.__file__).parent
    for path in folder.glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or top == "policies", f"{path.name} imports {name}"


def test_the_null_sink_takes_everything() -> None:
    NullSink().emit(Remembering)  # type: ignore[arg-type]
