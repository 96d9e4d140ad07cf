"""Whatever single thing is changed in a chain, verifying tells of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.gateway.audit_chain import Place
from cluster.gateway.audit_record import COLUMNS, Record
from cluster.gateway.audit_verify import ChainCheck
from tests.fakes.audit_records import chain_of

CHAIN = list(chain_of(12, unclosed=(4, 9)))
END = Place(CHAIN[-1].chain, CHAIN[-1].seq, CHAIN[-1].digest)
TEXT = st.text(max_size=80)


def broken(records: list[Record], head: Place | None = None) -> bool:
    check = ChainCheck(CHAIN[0].chain, head)
    for record in sorted(records, key=lambda one: one.seq):
        check.add(record)
    check.end()
    return bool(check.problems)


def test_as_it_was_written_it_is_whole() -> None:
    assert not broken(CHAIN, END)


@settings(max_examples=400, deadline=None)
@given(at=st.integers(0, len(CHAIN) - 1), column=st.sampled_from(COLUMNS), data=st.data())
def test_a_changed_column_is_found(at: int, column: str, data: st.DataObject) -> None:
    was = getattr(CHAIN[at], column)
    if column == "seq":
        given_seqs = {record.seq for record in CHAIN}
        new = data.draw(st.integers(-5, 2**40).filter(lambda seq: seq not in given_seqs))
    elif column == "body":
        place = data.draw(st.integers(0, len(was) - 1))
        new = was[:place] + data.draw(st.characters().filter(lambda c: c != was[place])) + was[place + 1 :]
    else:
        new = data.draw(st.one_of(TEXT, st.sampled_from([getattr(one, column) for one in CHAIN])))
    if new == was:
        return
    assert broken([*CHAIN[:at], replace(CHAIN[at], **{column: new}), *CHAIN[at + 1 :]])


@given(first=st.integers(0, len(CHAIN) - 1), count=st.integers(1, len(CHAIN)))
def test_records_that_are_missing_are_found(first: int, count: int) -> None:
    left = [*CHAIN[:first], *CHAIN[first + count :]]
    if left:
        assert broken(left, END)
        assert broken(left) or first + count >= len(CHAIN), (
            "only an end may be cut off unseen without the heads"
        )


@given(
    st.tuples(st.integers(0, len(CHAIN) - 1), st.integers(0, len(CHAIN) - 1)).filter(lambda p: p[0] != p[1])
)
def test_two_records_that_change_places_are_found(places: tuple[int, int]) -> None:
    one, other = (CHAIN[place] for place in places)
    rest = [record for record in CHAIN if record not in (one, other)]
    assert broken([*rest, replace(one, seq=other.seq), replace(other, seq=one.seq)])
