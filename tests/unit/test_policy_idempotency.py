"""The rules for idempotency keys, on the store in memory: what is replayed, what waits, and what may be taken over."""

from __future__ import annotations

import pytest

from policies.idempotency import (
    Claimed,
    InFlight,
    Keyed,
    KeyReused,
    MalformedKey,
    MemoryKeyStore,
    Recorded,
    Replay,
    body_digest,
    check_key,
    may_be_kept,
    scope_of,
)

ASKED = Keyed("scope", body_digest(b"one"))
OTHER = Keyed("scope", body_digest(b"two"))
ANSWER = Recorded(200, {"content-type": "application/json"}, b"{}")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def keys(time: Time) -> MemoryKeyStore:
    return MemoryKeyStore(time, lease_s=5.0, keep_s=100.0)


async def claimed(keys: MemoryKeyStore, keyed: Keyed = ASKED) -> Claimed:
    outcome = await keys.claim(keyed)
    assert isinstance(outcome, Claimed), outcome
    return outcome


async def test_the_first_claims_and_the_second_is_told_to_wait_no_longer_than_the_lease(
    keys: MemoryKeyStore,
) -> None:
    assert not (await claimed(keys)).again
    outcome = await keys.claim(ASKED)
    assert isinstance(outcome, InFlight)
    assert 0 < outcome.retry_after_s <= 1.0


async def test_what_is_finished_is_replayed_until_its_record_is_over(
    keys: MemoryKeyStore, time: Time
) -> None:
    assert await keys.finish(await claimed(keys), ANSWER)
    time.now += 99.0
    assert await keys.claim(ASKED) == Replay(ANSWER)
    time.now += 1.0
    assert not (await claimed(keys)).again, "a new request, a day later"


@pytest.mark.parametrize("finished", [False, True])
async def test_another_body_under_the_same_key_is_refused(keys: MemoryKeyStore, finished: bool) -> None:
    held = await claimed(keys)
    if finished:
        await keys.finish(held, ANSWER)
    assert await keys.claim(OTHER) == KeyReused()


async def test_a_lease_that_is_renewed_lasts(keys: MemoryKeyStore, time: Time) -> None:
    held = await claimed(keys)
    for _ in range(3):
        time.now += 4.0
        assert await keys.renew(held)
    assert isinstance(await keys.claim(ASKED), InFlight)


async def test_who_lost_the_lease_can_neither_renew_nor_finish_nor_release(
    keys: MemoryKeyStore, time: Time
) -> None:
    first = await claimed(keys)
    time.now += 5.0
    second = await claimed(keys)
    assert second.again, "the first may have done a part"
    assert second.fence > first.fence
    assert not await keys.renew(first)
    assert not await keys.finish(first, ANSWER)
    await keys.release(first, acted=False)
    assert await keys.finish(second, ANSWER)


async def test_a_released_key_is_free_for_any_body_unless_something_was_done(keys: MemoryKeyStore) -> None:
    await keys.release(await claimed(keys), acted=False)
    held = await claimed(keys, OTHER)
    await keys.release(held, acted=True)
    assert await keys.claim(ASKED) == KeyReused()
    assert (await claimed(keys, OTHER)).again


async def test_the_fence_of_a_released_claim_never_comes_back(keys: MemoryKeyStore, time: Time) -> None:
    first = await claimed(keys)
    await keys.release(first, acted=False)
    time.now += 0.001
    second = await claimed(keys)
    assert second.fence > first.fence
    assert not await keys.finish(first, ANSWER)


@pytest.mark.parametrize("key", ["k", "8e03978e-40d5-43dd-bc93-6894a57f9324", "x" * 255, '"quoted"'])
def test_keys(key: str) -> None:
    assert check_key(key) == key.strip('"')


@pytest.mark.parametrize(
    "key", ["", " ", '""', "a b", "x" * 256, "schlüssel", '"open', 'in"side', "a\tb", "a\\b"]
)
def test_malformed_keys_are_named_by_length_and_not_by_content(key: str) -> None:
    with pytest.raises(MalformedKey, match="255") as caught:
        check_key(key)
    assert len(key) < 3 or key not in str(caught.value)


def test_one_callers_key_is_never_anothers() -> None:
    given = [
        ("t", "p", "POST", "/v1/completions", "k"),
        ("u", "p", "POST", "/v1/completions", "k"),
        ("t", "q", "POST", "/v1/completions", "k"),
        ("t", "p", "POST", "/v1/chat/completions", "k"),
        ("t", "p", "POST", "/v1/completions", "l"),
        ("tp", "", "POST", "/v1/completions", "k"),
    ]
    assert len({scope_of(*one) for one in given}) == len(given)


def test_only_what_holds_for_a_retry_too_is_kept() -> None:
    kept = [status for status in range(200, 600) if may_be_kept(status)]
    assert {200, 202, 400, 404, 413, 422} <= set(kept)
    assert not {302, 401, 403, 408, 409, 425, 429, 500, 502, 503, 504} & set(kept)
