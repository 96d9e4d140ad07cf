"""Fault 13: a cache answers across tenants or model versions, for keys that collide, or after access was withdrawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.answer_store import Kept, MemoryAnswers
from policies.cache import FRESH, MISS, Cache, Terms
from policies.events import Event, WrongHitPrevented

ASKED = Terms("acme", "tiny", "r1", "p1", "staff", '{"messages":["hello"]}')


class Sink:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, WrongHitPrevented):
            self.reasons.append(event.reason)


def anybody() -> bool:
    return True


async def test_the_answer_is_there_for_whom_it_was_kept() -> None:
    cache = Cache(MemoryAnswers())
    await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    found = await cache.look(ASKED, anybody)
    assert (found.state, found.kept and found.kept.body) == (FRESH, b"secret")


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("tenant", "rival"),
        ("model", "small"),
        ("model_revision", "r2"),
        ("policy_revision", "p2"),
        ("entitlement", "guest"),
        ("request", '{"messages":["Hello"]}'),
        ("request", '{"messages":["hello "]}'),
    ],
)
async def test_whatever_differs_makes_another_key(field: str, other: str) -> None:
    cache = Cache(MemoryAnswers())
    await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    different = replace(ASKED, **{field: other})
    assert cache.key(different) != cache.key(ASKED)
    assert (await cache.look(different, anybody)).kept is None


@pytest.mark.parametrize(
    ("field", "other", "reason"),
    [
        ("tenant", "rival", "tenant"),
        ("model_revision", "r2", "terms"),
        ("request", '{"messages":["bye"]}', "terms"),
    ],
)
async def test_keys_that_collide_give_nobody_the_answer_of_another(
    field: str, other: str, reason: str
) -> None:
    sink, store = Sink(), MemoryAnswers()
    cache = Cache(store, sink=sink, digest=lambda text: "the same for all")
    await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    found = await cache.look(replace(ASKED, **{field: other}), anybody)
    assert (found.state, found.kept) == (MISS, None)
    assert sink.reasons == [reason]
    assert len(store) == 0, "what was found under a wrong key is put out"


async def test_who_may_no_longer_see_it_gets_nothing() -> None:
    sink, store = Sink(), MemoryAnswers()
    cache = Cache(store, sink=sink)
    await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    assert (await cache.look(ASKED, lambda: False)).kept is None
    assert sink.reasons == ["not_entitled"]
    assert (await cache.look(ASKED, anybody)).state == FRESH, "others may see it still"


async def test_the_right_is_asked_after_the_store_and_not_before() -> None:
    """Access that is withdrawn while the store is read is withdrawn."""
    allowed = True

    class Slow(MemoryAnswers):
        async def get(self, key: str) -> Kept | None:
            nonlocal allowed
            kept = await super().get(key)
            allowed = False
            return kept

    cache = Cache(Slow())
    await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    assert (await cache.look(ASKED, lambda: allowed)).kept is None


async def test_an_answer_at_hand_is_judged_again_when_it_is_given() -> None:
    cache = Cache(MemoryAnswers())
    kept = await cache.keep(ASKED, b"secret", tokens=3, saved_s=0.5)
    assert kept is not None
    assert cache.judge(ASKED, kept, anybody).state == FRESH
    assert cache.judge(ASKED, kept, lambda: False).kept is None
    assert cache.judge(replace(ASKED, tenant="rival"), kept, anybody).kept is None
