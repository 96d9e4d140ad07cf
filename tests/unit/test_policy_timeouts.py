"""Time-outs of an attempt, and the deadline of a call, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from policies.call import Attempt, Call, compose
from policies.clock import Deadline
from policies.errors import AttemptTimeout, DeadlineExceeded
from policies.progress import Progress, Reached
from policies.timeouts import AttemptTimeouts, DeadlineGuard, TimeoutSettings
from tests.fakes.policy_bench import CLOCK, Script, call
from tests.fakes.virtual_time import VirtualTimeLoop, now, run

POLICY = AttemptTimeouts(TimeoutSettings(header_s=1.0, first_token_s=5.0, stall_s=2.0))


def attempt_that(steps: list[tuple[float, str]], *, ends_after_s: float = 0.0) -> Script:
    """Return a handler that waits and then makes progress, step by step: headers, tokens, pause or resume."""

    async def follow(one: Call) -> str:
        assert one.attempt is not None
        for wait_s, what in steps:
            await asyncio.sleep(wait_s)
            getattr(one.attempt.progress, what)()
        await asyncio.sleep(ends_after_s)
        return "answer"

    return Script(follow)


async def long_work(_: Call) -> str:
    await asyncio.sleep(1e6)
    return "answer"


async def outcome(script: Script) -> tuple[str, float]:
    attempted = call().trying(Attempt(progress=Progress(CLOCK)))
    try:
        await compose([POLICY], script)(attempted)
        return "answer", now()
    except AttemptTimeout as error:
        return f"{error.reached.name}: {error}", now()


@pytest.mark.parametrize(
    ("steps", "ends_after_s", "expected", "at"),
    [
        ([], 60, "NOTHING: no response headers within 1 s", 1.0),
        ([(0.5, "headers")], 60, "HEADERS: no first token within 5 s", 5.0),
        ([(0.5, "headers"), (4.0, "tokens")], 60, "FIRST_TOKEN: no further token within 2 s", 6.5),
        (
            [(0.5, "headers"), (0.1, "tokens"), (1.9, "tokens")],
            60,
            "MID_STREAM: no further token within 2 s",
            4.5,
        ),
        ([(0.9, "headers"), (4.0, "tokens"), *[(1.9, "tokens")] * 50], 1.0, "answer", 100.9),
        ([(0.1, "headers"), (0.1, "tokens")], 1.9, "answer", 2.1),
    ],
)
def test_each_silence_has_its_own_bound(
    steps: list[tuple[float, str]], ends_after_s: float, expected: str, at: float
) -> None:
    said, when = run(outcome(attempt_that(steps, ends_after_s=ends_after_s)))
    assert said == expected
    assert when == pytest.approx(at, abs=0.001)


def test_silence_while_the_client_does_not_read_is_not_the_replicas() -> None:
    steps = [(0.1, "headers"), (0.1, "tokens"), (0.0, "pause"), (100.0, "resume"), (1.9, "tokens")]
    said, when = run(outcome(attempt_that(steps, ends_after_s=0.5)))
    assert said == "answer"
    assert when == pytest.approx(102.6)


def test_after_the_client_reads_again_silence_counts_again() -> None:
    steps = [(0.1, "headers"), (0.1, "tokens"), (0.0, "pause"), (10.0, "resume")]
    said, when = run(outcome(attempt_that(steps, ends_after_s=60)))
    assert said.startswith("FIRST_TOKEN")
    assert when == pytest.approx(12.2, abs=0.001)


def test_a_time_out_of_the_handler_itself_is_not_taken_for_one_of_the_policy() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        run(compose([POLICY], Script(TimeoutError("mine")))(call()))


def test_cancellation_from_outside_stays_a_cancellation() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(compose([POLICY], attempt_that([], ends_after_s=60))(call()))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_call_ends_at_its_deadline() -> None:
    async def main() -> float:
        with pytest.raises(DeadlineExceeded):
            await compose([DeadlineGuard()], Script(long_work))(call(within_s=3.0))
        return now()

    assert run(main()) == pytest.approx(3.0)


def test_a_call_without_deadline_may_take_for_ever() -> None:
    async def main() -> float:
        await compose([DeadlineGuard()], Script(long_work))(call())
        return now()

    assert run(main()) == pytest.approx(1e6)


def test_a_deadline_is_absolute() -> None:
    async def main() -> list[float]:
        deadline = Deadline.after(2.0, CLOCK)
        left = [deadline.remaining()]
        await asyncio.sleep(1.5)
        left.append(deadline.remaining())
        await asyncio.sleep(1.5)
        return [*left, deadline.remaining()]

    assert run(main()) == pytest.approx([2.0, 0.5, 0.0])


def test_settings_are_checked_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="header_s=2"):
        TimeoutSettings(header_s=2, first_token_s=1)
    with pytest.raises(ValueError, match="stall_s"):
        TimeoutSettings(stall_s=0)
    with pytest.raises(ValueError, match="delay_s"):
        run(_negative_deadline())


async def _negative_deadline() -> None:
    Deadline.after(-1, CLOCK)


def test_progress_never_goes_back() -> None:
    async def main() -> list[Reached]:
        progress = Progress(CLOCK)
        marks = [progress.reached]
        for step in (progress.headers, progress.tokens, progress.headers, progress.tokens, progress.tokens):
            step()
            marks.append(progress.reached)
        return marks

    names = [mark.name for mark in run(main())]
    assert names == ["NOTHING", "HEADERS", "FIRST_TOKEN", "FIRST_TOKEN", "MID_STREAM", "MID_STREAM"]


def test_a_replica_is_not_blamed_for_the_time_in_which_this_process_was_held_up() -> None:
    """The process stops for 30 s while the tokens come: the timer is first to run, but they are there already."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        arrived: asyncio.Queue[str] = asyncio.Queue()

        async def read_three(one: Call) -> str:
            assert one.attempt is not None
            one.attempt.progress.headers()
            for _ in range(3):
                await arrived.get()
                one.attempt.progress.tokens()
            return "answer"

        attempted = call().trying(Attempt(progress=Progress(CLOCK)))
        task = asyncio.ensure_future(compose([POLICY], Script(read_three))(attempted))
        arrived.put_nowait("first")
        await asyncio.sleep(0.5)
        loop.call_soon(arrived.put_nowait, "second")  # as a socket does: its reader runs a turn later
        loop.now += 30
        loop.call_later(0.1, arrived.put_nowait, "third")
        return await task  # type: ignore[no-any-return]

    assert run(main()) == "answer"
