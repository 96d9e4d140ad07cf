"""What holds of stall detection whatever the streams do: the frozen are found in time, and nobody else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.work import Work
from tests.fakes.stalling import Freezer
from tests.fakes.virtual_time import now, run

moments = st.floats(0.0, 3.0).map(lambda value: round(value, 3))


@dataclass(frozen=True)
class Stream:
    """One call: when it begins, on which replica, how long its prompt is, and when its client leaves."""

    at_s: float
    on: int
    prompt_tokens: int
    leaves_after_s: float | None


streams = st.lists(
    st.builds(
        Stream,
        at_s=moments,
        on=st.integers(0, 2),
        prompt_tokens=st.sampled_from([10, 150, 1000, 3000]),
        leaves_after_s=st.none() | st.floats(0.1, 2.0),
    ),
    max_size=12,
)


async def play(bench: Freezer, plan: list[Stream]) -> None:
    async def client(stream: Stream) -> None:
        await asyncio.sleep(stream.at_s)
        task = bench.sending(bench.replicas[stream.on], work=Work(stream.prompt_tokens, 20))
        await asyncio.wait([task], timeout=stream.leaves_after_s)
        task.cancel()
        await asyncio.wait([task])

    await asyncio.gather(*(client(stream) for stream in plan))


@settings(deadline=None, max_examples=60)
@given(plan=streams)
def test_where_nothing_freezes_nobody_is_ejected(plan: list[Stream]) -> None:
    async def main() -> None:
        bench = Freezer()
        await play(bench, plan)
        assert bench.ejections() == []
        assert not bench.watch._lines
        assert bench.watch._timer is None

    run(main())


@settings(deadline=None, max_examples=60)
@given(plan=streams, at_s=moments, stopped=st.booleans())
def test_a_frozen_replica_with_a_stream_that_stays_is_out_within_two_seconds_and_nobody_else_is(
    plan: list[Stream], at_s: float, stopped: bool
) -> None:
    async def main() -> None:
        bench = Freezer()
        playing = asyncio.ensure_future(play(bench, plan))
        await asyncio.sleep(at_s)
        bench.freeze(bench.replicas[0], stopped=stopped)
        stays = bench.sending(bench.replicas[0])
        silent_since = now()
        await bench.ejected_within_s(bench.replicas[0])
        assert now() - silent_since < 2.0
        await playing
        assert (await stays) in ("EngineStalled", "AttemptTimeout")
        assert bench.ejections() == ["r0"]

    run(main())
