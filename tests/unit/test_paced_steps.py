"""The stand-in for an engine's slots and steps behaves as a paced replica does."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.paced_steps import PacedSteps
from tests.fakes.virtual_time import run


async def token_times(steps: PacedSteps, prompt_tokens: int, tokens: int) -> list[float]:
    times = []
    with steps.seat(prompt_tokens, tokens) as seat:
        for _ in range(tokens):
            await seat.token()
            times.append(asyncio.get_running_loop().time())
    return times


def test_who_holds_a_slot_gets_its_tokens_together_and_the_next_waits_for_a_slot() -> None:
    async def main() -> None:
        steps = PacedSteps(2, base_s=0.04, per_token_s=0.001)
        began = asyncio.get_running_loop().time()
        wanted = (token_times(steps, 10, tokens) for tokens in (2, 3, 1))
        times = [[at - began for at in one] for one in await asyncio.gather(*wanted)]
        first = 0.04 + 0.001 * 20  # two prompts of ten tokens
        second = first + 0.04 + 0.001 * 2
        third = second + 0.04 + 0.001 * (1 + 10)  # one goes on, and the one that waited comes in
        assert times[0] == pytest.approx([first, second])
        assert times[1] == pytest.approx([first, second, third])
        assert times[2] == pytest.approx([third])

    run(main())


def test_a_caller_who_leaves_frees_its_slot() -> None:
    async def main() -> None:
        steps = PacedSteps(1)
        leaves = asyncio.create_task(token_times(steps, 1, 1000))
        stays = asyncio.create_task(token_times(steps, 1, 1))
        await asyncio.sleep(0.1)
        assert (len(steps.running), len(steps.waiting)) == (1, 1)
        leaves.cancel()
        assert len(await stays) == 1
        assert (steps.running, list(steps.waiting)) == ([], [])

    run(main())


def test_after_a_rest_it_starts_again() -> None:
    async def main() -> None:
        steps = PacedSteps(1, base_s=0.04, per_token_s=0.0)
        await token_times(steps, 1, 2)
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        assert [at - began for at in await token_times(steps, 1, 1)] == pytest.approx([0.04])

    run(main())
