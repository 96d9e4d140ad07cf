"""For any terms and any damage: no two that differ share a key, and no record that was touched is ever a hit."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from policies.answer_store import Kept, MemoryAnswers
from policies.cache import FRESH, Cache, Terms
from policies.digest import canonical

WORDS = st.text(st.characters(exclude_categories=()), max_size=12)
TERMS = st.builds(Terms, WORDS, WORDS, WORDS, WORDS, WORDS, WORDS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OTHERS: dict[str, Any] = {
    "key": WORDS,
    "tenant": WORDS,
    "described": WORDS,
    "body": st.binary(max_size=20),
    "seal": WORDS,
    "tokens": st.integers(0, 2**31),
    "saved_s": st.floats(0, 1e6),
    "stored_at": st.floats(0, 2e9),
    "fresh_until": st.floats(0, 2e9),
    "stale_until": st.floats(0, 2e9),
}


def anybody() -> bool:
    return True


@given(TERMS, TERMS)
def test_no_two_terms_share_a_key(one: Terms, other: Terms) -> None:
    cache = Cache(MemoryAnswers())
    assert (cache.key(one) == cache.key(other)) == (one == other)


@given(JSON, JSON)
def test_no_two_requests_have_one_text(one: Any, other: Any) -> None:
    assume(one != other)
    assert canonical(one) != canonical(other)


@given(TERMS, st.data())
async def test_a_record_that_was_touched_is_a_miss(terms: Terms, data: st.DataObject) -> None:
    store = MemoryAnswers(wall=lambda: 1e9)
    cache = Cache(store)
    kept = await cache.keep(terms, b"answer", tokens=5, saved_s=0.25)
    assert kept is not None
    name = data.draw(st.sampled_from([field.name for field in fields(Kept)]))
    value = data.draw(OTHERS[name])
    assume(value != getattr(kept, name))
    touched = replace(kept, **{name: value})
    store.place(replace(touched, key=kept.key))  # it is found where the true one was
    if name == "key":
        store._kept[kept.key] = touched
    assert (await cache.look(terms, anybody)).kept is None


@given(st.lists(TERMS, min_size=2, max_size=6, unique_by=lambda one: one.described))
async def test_even_where_every_key_collides_nobody_gets_the_answer_of_another(
    all_of_them: list[Terms],
) -> None:
    cache = Cache(MemoryAnswers(), digest=lambda text: "the same")
    for number, terms in enumerate(all_of_them):
        await cache.keep(terms, str(number).encode(), tokens=1, saved_s=0.1)
        for other, asked in enumerate(all_of_them):
            found = await cache.look(asked, anybody)
            assert found.kept is None or (other == number and found.kept.body == str(number).encode())
            if found.kept is None:
                await cache.keep(terms, str(number).encode(), tokens=1, saved_s=0.1)
        assert (await cache.look(terms, anybody)).state == FRESH
