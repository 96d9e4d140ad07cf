"""Names, slots and ports of links."""

from __future__ import annotations

import pytest

from cluster.links import naming
from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, replica_label


def test_a_name_leads_back_to_its_label_slot_and_replica() -> None:
    name = naming.link_name(KIND_REPLICA, 2, "9jveelkx", taken=())
    assert name == "replica-2.eelkx"
    assert replica_label(name) == "replica-2"
    assert naming.parse(name) == (KIND_REPLICA, 2, naming.short_id("9jveelkx"))


def test_a_replica_of_the_smaller_model_has_a_name_of_its_own_kind() -> None:
    name = naming.link_name(KIND_REPLICA_SMALL, 0, "9jveelkx", taken=())
    assert name == "small-0.eelkx"
    assert replica_label(name) == "small-0"
    assert naming.parse(name) == (KIND_REPLICA_SMALL, 0, "eelkx")


def test_a_taken_name_is_lengthened_and_still_leads_back() -> None:
    taken = {"replica-0.aaaaa", "replica-0.aaaaa-2"}
    name = naming.link_name(KIND_REPLICA, 0, "aaaaa", taken)
    assert name == "replica-0.aaaaa-3"
    assert naming.parse(name) == (KIND_REPLICA, 0, "aaaaa")


@pytest.mark.parametrize(
    "name",
    ["client", "tool", "replica-", "replica-0", "replica-x.aaaaa", "replica-1.a/b", "bigger-0.aaaaa", ""],
)
def test_other_names_are_none_of_a_replica(name: str) -> None:
    assert naming.parse(name) is None


def test_an_id_without_letters_still_gives_a_name() -> None:
    assert naming.parse(naming.link_name(KIND_REPLICA, 0, "--", ())) == (KIND_REPLICA, 0, "x")


@pytest.mark.parametrize(("taken", "slot"), [((), 0), ((0, 1), 2), ((1, 2), 0), ((0, 2), 1)])
def test_the_lowest_free_slot_is_taken(taken: tuple[int, ...], slot: int) -> None:
    assert naming.lowest_free_slot(taken) == slot


def test_ports_are_handed_out_in_turn_so_that_a_freed_one_comes_last() -> None:
    ports = naming.Ports(100, 3)
    assert [ports.take(()) for _ in range(4)] == [100, 101, 102, 100]
    assert ports.take({101, 102}) == 100
    assert 102 in ports
    assert 103 not in ports


def test_no_port_left_says_what_to_do() -> None:
    with pytest.raises(naming.NoPortError, match="BROWNOUT_PORT_REPLICA_LINKS"):
        naming.Ports(100, 2).take({100, 101})
