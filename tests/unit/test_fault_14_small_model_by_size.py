"""Fault 14: "A fallback model reached by oversizing the prompt, without entitlement to it."

A prompt that does not fit is a 400 in every profile and at every level; only the ladder leads to the smaller model,
and only those whom their class lets there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster import public
from policies.call import Call
from policies.degradation import Degradation
from policies.errors import CallRejected, QueueFull
from policies.ladder import LOWEST_LEVEL, SMALL_MODEL, ClassRungs
from policies.priority import Priority
from tests.fakes.gateway import Rig, rig
from tests.fakes.policy_bench import CLOCK, Script, call
from tests.fakes.replica import MODEL
from tests.fakes.virtual_time import run

OVERSIZED: list[dict[str, Any]] = [
    {"prompt": [1] * 5000},
    {"prompt": [1] * 4090, "max_tokens": 100},
    {"prompt": "x", "max_tokens": 4096},
]


def lowered(made: Rig) -> None:
    """Put the ladder to its lowest level and keep it there."""
    ladder = made.gateway.pipeline.ladder
    if ladder is not None:
        ladder._ladder.level = LOWEST_LEVEL
        ladder._ladder._moved_at = made.gateway.clock.now()


@pytest.mark.parametrize("priority", [one.label for one in Priority])
@pytest.mark.parametrize("profile", public.PROFILES)
async def test_an_oversized_prompt_is_refused_in_every_profile_at_every_level(
    profile: str, priority: str
) -> None:
    async with rig(1, profile=profile) as made:
        [small] = await made.small()
        for low in (False, True):
            if low:
                lowered(made)
            for body in OVERSIZED:
                headers = {public.HEADER_PRIORITY: priority}
                async with made.http.post(
                    f"{made.url}/v1/completions", json={"model": MODEL, **body}, headers=headers
                ) as response:
                    said = await response.json()
                assert (response.status, said["error"]["code"]) == (400, "context_length_exceeded")
        assert small.seen == made.replicas[0].seen == []


async def test_nobody_names_the_smaller_model_to_get_it() -> None:
    async with rig(1) as made:
        [small] = await made.small()
        body = {"model": public.SMALL_MODEL_NAME, "prompt": "x", "max_tokens": 2}
        async with made.http.post(f"{made.url}/v1/completions", json=body) as response:
            assert response.status == 404
        assert small.seen == []


class _Smaller:
    def at(self, one: Call, rung: str) -> Call | None:
        return replace(one, payload=rung) if rung == SMALL_MODEL else None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, CallRejected("too long for the engine", status=400)),
        ({"entitled": lambda one, rung: False}, QueueFull("full", retry_after_s=1)),
        ({"classes": {"plain": ClassRungs(lowest="no_tools")}}, QueueFull("full", retry_after_s=1)),
    ],
    ids=["too long", "not entitled", "not in the class"],
)
def test_only_the_ladder_leads_there_and_only_the_entitled(options: dict[str, Any], error: Exception) -> None:
    async def main() -> None:
        small, main_fleet = Script(), Script(error)
        ladder = Degradation(handlers={SMALL_MODEL: small}, clock=CLOCK, **options)
        with pytest.raises(type(error)):
            await ladder(
                call(priority=Priority.SHEDDABLE, service_class="plain", degradable=_Smaller()), main_fleet
            )
        assert small.attempts == []
        assert len(main_fleet.attempts) == 1

    run(main())
