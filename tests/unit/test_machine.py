"""How much of the processors others had: what is subtracted, and that a reading sees this very process work."""

from __future__ import annotations

import os

from chaos.machine import Reading, others_share, read


def test_what_is_our_own_is_not_the_others() -> None:
    before = Reading(100.0, 50.0, {1: 10.0, 2: 5.0})
    after = Reading(120.0, 65.0, {1: 14.0, 2: 9.0})
    assert others_share(before, after) == (15.0 - 8.0) / 20.0


def test_a_new_process_counts_whole_and_one_that_died_takes_its_account_with_it() -> None:
    before = Reading(100.0, 50.0, {1: 10.0})
    after = Reading(110.0, 55.0, {2: 2.0})
    assert others_share(before, after) == (5.0 - 2.0) / 10.0


def test_it_stays_a_share() -> None:
    before = Reading(100.0, 50.0, {})
    assert others_share(before, before) == 0.0
    assert others_share(before, Reading(101.0, 50.0, {1: 5.0})) == 0.0


def test_what_this_process_does_is_its_own() -> None:
    before = read()
    until_s = before.own_s[os.getpid()] + 0.3
    while (after := read()).own_s[os.getpid()] < until_s:
        pass
    busy_s, own_s = after.busy_s - before.busy_s, after.own_s[os.getpid()] - before.own_s[os.getpid()]
    assert own_s > 0.29
    assert busy_s >= 0.2, "the machine was busy at least with us, give or take its clock tick"
    assert 0.0 <= others_share(before, after) <= 1.0
