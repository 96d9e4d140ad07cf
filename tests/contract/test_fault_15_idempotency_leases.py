"""Fault 15: a lease as long as the record, so that a crash answers 409 all day; or the lock is gone but the record is
not yet written, and the request is executed twice."""

from __future__ import annotations

import asyncio

import pytest

from cluster.gateway.claims import Claims, still_held
from cluster.gateway.steps import Before, StepKey, Steps, StepState
from cluster.gateway.store.store import Store
from policies.idempotency import Claimed, ClaimLost, InFlight, Keyed, Recorded, Replay, body_digest

LEASE_S = 0.4
KEYED = Keyed("scope", body_digest(b"{}"), "t", "p", "req")
STEP = StepKey.of("scope", "tool-0", "submit_transfer", {"amount": "1"})


async def crashed(store: Store) -> tuple[Claims, Claimed]:
    """A gateway that has claimed the key and then renews nothing any more."""
    claims = Claims(store, "crashed", lease_s=LEASE_S)
    claim = await claims.claim(KEYED)
    assert isinstance(claim, Claimed)
    await claims.aclose()
    return claims, claim


async def next_holder(claims: Claims) -> Claimed:
    async with asyncio.timeout(10):
        while isinstance(outcome := await claims.claim(KEYED), InFlight):
            assert outcome.retry_after_s <= 1
            await asyncio.sleep(0.02)
    assert isinstance(outcome, Claimed)
    return outcome


async def test_a_crash_blocks_its_key_for_the_lease_and_not_for_the_day(store: Store) -> None:
    await crashed(store)
    other, loop = Claims(store, "other"), asyncio.get_running_loop()
    began_at = loop.time()
    assert isinstance(await other.claim(KEYED), InFlight)
    assert (await next_holder(other)).again
    assert loop.time() - began_at < LEASE_S + 1.0
    await other.aclose()


async def test_who_has_lost_the_lease_neither_records_nor_makes_a_tool_act(store: Store) -> None:
    first, old = await crashed(store)
    other = Claims(store, "other")
    new = await next_holder(other)
    steps = Steps(store)
    with pytest.raises(ClaimLost):
        await steps.begin(STEP, lambda connection: still_held(connection, old), request_id="late")
    assert not await first.finish(old, Recorded(200, {}, b"late"))
    assert await other.finish(new, Recorded(200, {}, b"right"))
    assert await other.claim(KEYED) == Replay(Recorded(200, {}, b"right"))
    await other.aclose()


@pytest.mark.parametrize("recorded", [False, True])
async def test_the_next_holder_knows_what_the_crashed_one_may_have_done(store: Store, recorded: bool) -> None:
    steps = Steps(store)
    _, old = await crashed(store)
    assert await steps.begin(STEP, lambda connection: still_held(connection, old), request_id="first") is None
    if recorded:
        await steps.end(STEP, StepState.DONE, {"seq": 1})
    other = Claims(store, "other")
    new = await next_holder(other)
    found = await steps.begin(STEP, lambda connection: still_held(connection, new), request_id="second")
    assert found == (Before(StepState.DONE, {"seq": 1}) if recorded else Before(StepState.ASKED))
    await other.aclose()
