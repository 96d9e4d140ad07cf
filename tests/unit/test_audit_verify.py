"""What verifying tells of a chain that was tampered with, and what it does not take for tampering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.gateway.audit_chain import Place
from cluster.gateway.audit_record import (
    CLOSE,
    HEAD,
    Closing,
    Opening,
    Record,
    closing_body,
    opening_body,
    seal,
)
from cluster.gateway.audit_verify import ChainCheck
from tests.fakes.audit_records import chain_of


def checked(records: Iterable[Record], head: Place | None = None) -> ChainCheck:
    check = ChainCheck("chain-a", head)
    for record in records:
        check.add(record)
    check.end()
    return check


def told(records: Iterable[Record], head: Place | None = None) -> list[tuple[str, int]]:
    return [(problem.kind, problem.seq) for problem in checked(records, head).problems]


def test_a_whole_chain_has_no_problems_and_its_open_requests_are_told() -> None:
    check = checked(chain_of(20, unclosed=(3, 7)))
    assert check.problems == []
    assert [one.request_id for one in check.unclosed.values()] == ["r3", "r7"]
    assert check.records == 39


def test_each_kind_of_change_is_told_once_and_where() -> None:
    records = list(chain_of(10))
    body = records[5].body.replace('"tenant":"t"', '"tenant":"u"')
    assert told([*records[:5], replace(records[5], body=body), *records[6:]]) == [("altered", 5)]
    assert told([*records[:5], *records[8:]]) == [("missing", 5)]
    assert told(records[3:]) == [("missing", 0)]
    assert told([*records[:4], replace(records[4], digest="0" * 64), *records[5:]]) == [("altered", 4)]
    swapped = [*records[:5], replace(records[6], seq=5), replace(records[5], seq=6), *records[7:]]
    assert told(swapped) == [("reordered", 5), ("reordered", 6)]
    moved = sorted([*records[:5], replace(records[5], seq=900), *records[6:]], key=lambda one: one.seq)
    assert told(moved) == [("missing", 5), ("missing", 21), ("reordered", 900)]


def test_an_end_that_is_cut_off_shows_only_against_a_head_that_was_kept() -> None:
    records = list(chain_of(10))
    end = Place("chain-a", records[-1].seq, records[-1].digest)
    assert told(records, end) == []
    assert told(records[:-3]) == []
    assert told(records[:-3], end) == [("missing", 18)]


def test_a_chain_that_was_written_anew_shows_against_a_head_that_was_kept() -> None:
    records = list(chain_of(10))
    head = Place("chain-a", 9, records[9].digest)
    forged = list(chain_of(10, unclosed=(0,)))
    assert told(forged) == []
    assert told(forged, head) == [("altered", 9)]


def test_a_close_of_what_is_not_open_is_told() -> None:
    records = list(chain_of(3))
    last = records[-1]
    body = {**closing_body(Closing("ok", 200), 1.0), "opened": 1}
    again = seal("chain-a", last.seq + 1, last.digest, CLOSE, "r0", body)
    assert told([*records, again]) == [("altered", last.seq + 1)]


def test_a_kind_that_does_not_exist_is_told() -> None:
    records = list(chain_of(3))
    last = records[-1]
    other = seal("chain-a", last.seq + 1, last.digest, "note", "", {})
    assert told([*records, other]) == [("altered", last.seq + 1)]


def test_a_head_that_pruning_left_stands_for_what_was_before_it() -> None:
    records = list(chain_of(10))
    pruned = {"seq": 8, "digest": records[8].digest}
    head = seal("chain-a", 8, records[0].digest, HEAD, "", {"at": 1.0, "pruned": pruned})
    rest = records[9:]
    assert told([head, *rest]) == []
    assert told([head, *rest], Place("chain-a", 8, records[8].digest)) == []
    assert told([head, *rest], Place("chain-a", 8, records[7].digest)) == [("altered", 8)]
    assert told([head, *rest[1:]]) == [("missing", 9)]
    wrong = seal(
        "chain-a", 8, records[0].digest, HEAD, "", {"at": 1.0, "pruned": {**pruned, "digest": "0" * 64}}
    )
    assert told([wrong, *rest]) == [("reordered", 9)]


def test_records_hold_hashes_and_sizes_and_no_more_of_a_name_than_is_one() -> None:
    opening = opening_body(Opening("r", model="m" * 5000, body_digest="d" * 64, body_bytes=9), 1.0)
    assert len(opening["model"]) == 128
    assert opening["body_bytes"] == 9
    assert "prompt_chars" not in opening
