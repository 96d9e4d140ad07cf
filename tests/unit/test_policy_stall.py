"""Stall detection: what is a stall, what only looks like one, and what becomes of the attempts."""

from __future__ import annotations

import asyncio

import pytest

from policies.errors import CallRejected, EngineStalled
from policies.events import AttemptEnded, Ejected
from policies.observe import ObservedAttempt
from policies.progress import Progress, Reached
from policies.stall import StallSettings, StallWatch
from policies.work import Work
from tests.fakes.policy_bench import CLOCK
from tests.fakes.stalling import Freezer
from tests.fakes.virtual_time import VirtualTimeLoop, now, run


def hold_up(seconds: float) -> None:
    """Hold this process up: time passes, and nothing is read meanwhile."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += seconds


def test_a_frozen_replica_is_out_and_all_its_streams_are_ended() -> None:
    async def main() -> None:
        bench = Freezer()
        frozen = bench.replicas[0]
        streams = [bench.sending(frozen) for _ in range(4)]
        await asyncio.sleep(0.3)
        bench.freeze(frozen)
        late = bench.sending(frozen)
        assert 1.0 < await bench.ejected_within_s(frozen) < 2.0
        assert await asyncio.gather(*streams, late) == ["EngineStalled"] * 5
        assert "no token progress" in bench.sink.of(Ejected)[0].reason
        assert {event.error for event in bench.sink.of(AttemptEnded)} == {"EngineStalled"}

    run(main())


def test_a_token_on_any_stream_is_enough() -> None:
    """Queued and preempted streams wait; their replica is well as long as another of its streams moves."""

    async def main() -> None:
        bench = Freezer()
        replica = bench.replicas[0]
        queued = [attempt_on(bench, reached=Reached.HEADERS) for _ in range(3)]
        for one in queued:
            bench.watch.started(one)
        for _ in range(12):
            assert await bench.attempt(replica) == "ok"
        assert now() > 5.0
        assert bench.ejections() == []
        for one in queued:
            bench.watch.ended(one, None)

    run(main())


def attempt_on(
    bench: Freezer, *, which: int = 0, prompt_tokens: int = 100, reached: Reached = Reached.NOTHING
) -> ObservedAttempt:
    progress = Progress(CLOCK)
    if reached >= Reached.HEADERS:
        progress.headers()
    if reached >= Reached.FIRST_TOKEN:
        progress.tokens()
    return ObservedAttempt(
        "c", 1, bench.replicas[which], Work(prompt_tokens, 20), progress, now(), False, lambda error: None
    )


def test_a_client_that_does_not_read_is_not_the_replicas_fault() -> None:
    async def main() -> None:
        bench = Freezer()
        attempt = attempt_on(bench, reached=Reached.FIRST_TOKEN)
        bench.watch.started(attempt)
        attempt.progress.pause()
        await asyncio.sleep(30)
        attempt.progress.resume()
        await asyncio.sleep(1.1)
        assert bench.ejections() == []
        await asyncio.sleep(0.4)
        assert bench.ejections() == ["r0"], "but once it reads again, silence counts"
        bench.watch.ended(attempt, None)

    run(main())


def test_a_process_that_was_itself_held_up_blames_nobody() -> None:
    async def main() -> None:
        bench = Freezer()
        streams = [bench.sending(bench.replicas[0]) for _ in range(3)]
        await asyncio.sleep(0.2)
        hold_up(30.0)
        assert await asyncio.gather(*streams) == ["ok"] * 3
        assert bench.ejections() == []

    run(main())


def test_it_looks_twice_so_that_a_token_that_lies_unread_is_seen() -> None:
    """The timer and the token are due in the same turn of the loop, and the timer comes first."""

    async def main() -> None:
        bench = Freezer()
        attempt = attempt_on(bench)
        bench.watch.started(attempt)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1.25)  # from the next look on it is silent for too long
        loop.call_at(bench.watch._due_at, lambda: loop.call_soon(attempt.progress.tokens))
        await asyncio.sleep(0.3)
        assert bench.ejections() == []
        bench.watch.ended(attempt, None)

    run(main())


def test_when_every_busy_replica_is_silent_the_cause_is_shared() -> None:
    async def main() -> None:
        bench = Freezer()
        streams = [bench.sending(one) for one in bench.replicas]
        await asyncio.sleep(0.2)
        for one in bench.replicas:
            bench.freeze(one)
        await asyncio.sleep(4)
        assert bench.ejections() == []
        bench.thaw(bench.replicas[0])
        await asyncio.sleep(0.2)
        assert sorted(bench.ejections()) == ["r1", "r2"], "until one of them moves and the others do not"
        assert sorted(await asyncio.gather(*streams)) == ["EngineStalled", "EngineStalled", "ok"]

    run(main())


def test_a_replica_that_must_stay_keeps_its_attempts() -> None:
    """To end them would help nobody: there is nowhere else to go."""

    async def main() -> None:
        bench = Freezer(1)
        stream = bench.sending(bench.replicas[0])
        await asyncio.sleep(0.2)
        bench.freeze(bench.replicas[0])
        await asyncio.sleep(4)
        assert not stream.done()
        bench.thaw(bench.replicas[0])
        assert await stream == "ok"

    run(main())


def test_a_long_prompt_has_the_time_that_its_prefill_takes() -> None:
    async def main() -> tuple[str, list[str]]:
        bench = Freezer()
        for _ in range(200):
            bench.rates.first_token(2000, 2.03)
            bench.rates.first_token(100, 0.13)
        bench.prefill_s = 4.0
        return await bench.attempt(bench.replicas[0], work=Work(4000, 20)), bench.ejections()

    assert run(main()) == ("ok", [])


def test_however_many_prompts_it_holds_it_is_out_within_two_seconds() -> None:
    async def main() -> float:
        bench = Freezer(header_s=5.0)
        bench.freeze(bench.replicas[0])
        streams = [bench.sending(bench.replicas[0], work=Work(3000, 20)) for _ in range(30)]
        after_s = await bench.ejected_within_s(bench.replicas[0])
        await asyncio.gather(*streams)
        return after_s

    assert run(main()) < 2.0


def test_where_tokens_are_slow_silence_is_measured_by_that() -> None:
    async def main() -> list[str]:
        bench = Freezer()
        for _ in range(500):
            bench.rates.finished(11, 10 * 0.9)
        attempt = attempt_on(bench, reached=Reached.FIRST_TOKEN)
        bench.watch.started(attempt)
        await asyncio.sleep(5)
        bench.watch.ended(attempt, None)
        return bench.ejections()

    assert run(main()) == []


def test_answers_that_need_no_engine_are_no_sign_of_its_life() -> None:
    """Found by the simulation: each 400 given in front of a frozen engine put off its ejection."""

    async def main() -> list[str]:
        bench = Freezer()
        waiting = attempt_on(bench, reached=Reached.HEADERS)
        bench.watch.started(waiting)
        for _ in range(4):
            rejected = attempt_on(bench, reached=Reached.HEADERS)
            bench.watch.started(rejected)
            await asyncio.sleep(0.5)
            rejected.outcome = "failed"
            bench.watch.ended(rejected, CallRejected("too long", status=400))
        bench.watch.ended(waiting, None)
        return bench.ejections()

    assert len(run(main())) == 1


def test_an_answer_that_ends_well_is_a_sign_of_life() -> None:
    async def main() -> list[str]:
        bench = Freezer()
        waiting = attempt_on(bench, reached=Reached.HEADERS)
        bench.watch.started(waiting)
        for _ in range(10):
            whole = attempt_on(bench, reached=Reached.HEADERS)
            bench.watch.started(whole)
            await asyncio.sleep(0.5)
            whole.outcome = "ok"
            bench.watch.ended(whole, None)
        bench.watch.ended(waiting, None)
        return bench.ejections()

    assert run(main()) == []


def test_headers_waited_for_in_vain_are_a_stall_only_without_any_sign_of_life() -> None:
    async def main(alive: bool) -> list[str]:
        bench = Freezer(header_s=0.5)
        replica = bench.replicas[0]
        streaming = [bench.sending(replica)] if alive else []
        await asyncio.sleep(0.1)
        bench._running[replica].clear()
        assert await bench.attempt(replica) == "AttemptTimeout"
        await asyncio.gather(*streaming)
        return bench.ejections()

    assert run(main(alive=False)) == ["r0"]
    assert run(main(alive=True)) == []


def test_the_timer_runs_only_while_attempts_are_in_flight_and_not_for_each_token() -> None:
    async def main() -> None:
        bench = Freezer()
        assert bench.watch._timer is None
        looks = 0
        look = bench.watch._look

        def counted() -> None:
            nonlocal looks
            looks += 1
            look()

        bench.watch._look = counted  # type: ignore[method-assign]
        await asyncio.gather(*(bench.sending(one) for one in bench.replicas * 5))
        assert 4 <= looks <= now() / StallSettings().look_s + 1
        assert bench.watch._timer is None
        assert not bench.watch._lines

    run(main())


def test_alone_it_ends_the_attempts_and_leaves_the_rest_to_its_user() -> None:
    async def main() -> list[BaseException]:
        ended: list[BaseException] = []
        bench = Freezer()
        watch = StallWatch(clock=CLOCK)
        attempt = attempt_on(bench)
        attempt.abort = ended.append
        watch.started(attempt)
        await asyncio.sleep(1.35)
        watch.ended(attempt, EngineStalled("stalled"))
        watch.ended(attempt, EngineStalled("stalled"))
        return ended

    ended = run(main())
    assert len(ended) == 1
    assert isinstance(ended[0], EngineStalled)


@pytest.mark.parametrize(("field", "value"), [("silent_s", 0.0), ("look_s", 0.7), ("most_prefill_s", -1.0)])
def test_settings_are_checked_when_they_are_made(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        StallSettings(**{field: value})
