"""The links service's decisions, with time and Toxiproxy in the test's hands."""

from __future__ import annotations

import pytest

from cluster.links.book import DRAIN_S, SERVE_AWAY_S
from cluster.links.records import Create, ProxySeen, Remove
from cluster.links.serve_status import ServeStatus
from tests.fakes.link_world import CLIENT, FIRST_PORT, LinkWorld, status, target

A, B, C = target("aaaaa"), target("bbbbb", 30001), target("ccccc", 30002)


def running(*targets: object, **more: str) -> LinkWorld:
    world = LinkWorld()
    world.look()
    world.serve(status(*targets, **more))  # type: ignore[arg-type]
    world.settle()
    return world


def test_the_store_has_a_link_only_where_its_server_is_named() -> None:
    for store, expected in ((None, ["client"]), ((8091, "postgres:5432"), ["client", "store"])):
        world = LinkWorld(store=store)
        world.look()
        world.settle()
        assert [link.name for link in world.book.links] == expected, "without waiting for Serve"
    assert world.proxies["store"] == ProxySeen(8091, "postgres:5432")
    world.serve(status(A))
    world.settle()
    assert [link.kind for link in world.book.links] == ["client", "store", "replica"]


def test_nothing_is_done_before_toxiproxy_was_seen() -> None:
    world = LinkWorld()
    world.serve(status(A))
    assert world.start() == []
    assert not world.book.ready
    world.look()
    assert world.book.ready


def test_the_client_link_does_not_wait_for_serve() -> None:
    world = LinkWorld()
    world.look()
    world.settle()
    assert [link.name for link in world.book.links] == ["client"]
    assert world.book.links[0].upstream == CLIENT[1]
    assert not world.book.ready


def test_each_replica_gets_the_lowest_free_slot_and_a_port_of_its_own() -> None:
    world = running(A, B)
    assert [(link.name, link.label, link.port, link.upstream) for link in world.replicas] == [
        ("replica-0.aaaaa", "replica-0", FIRST_PORT, A.upstream),
        ("replica-1.bbbbb", "replica-1", FIRST_PORT + 1, B.upstream),
    ]


def test_a_link_is_listed_only_when_its_proxy_is_there() -> None:
    world = running(A)
    before = world.book.version
    world.serve(status(A, B))
    actions = world.start()
    assert actions == [Create("replica-1.bbbbb", FIRST_PORT + 1, B.upstream)]
    assert world.book.version == before
    world.finish(actions[0])
    assert [link.name for link in world.replicas] == ["replica-0.aaaaa", "replica-1.bbbbb"]
    assert world.book.version == before + 1


def test_a_lost_replica_leaves_the_list_at_once_and_its_proxy_is_removed() -> None:
    world = running(A, B)
    world.serve(status(B))
    assert [link.name for link in world.replicas] == ["replica-1.bbbbb"]
    world.settle()
    assert "replica-0.aaaaa" not in world.proxies
    assert world.book.pending_removals == 0


def test_a_replacement_takes_the_slot_but_a_new_name_and_port() -> None:
    world = running(A, B)
    world.serve(status(B, C))
    world.settle()
    assert [(link.name, link.port) for link in world.replicas] == [
        ("replica-0.ccccc", FIRST_PORT + 2),
        ("replica-1.bbbbb", FIRST_PORT + 1),
    ]


def test_a_hanging_removal_delays_nothing_and_is_tried_again() -> None:
    world = running(A, B)
    world.refuse["replica-0.aaaaa"] = "failed"
    world.serve(status(B, C))
    world.settle()
    assert world.link("replica-0.ccccc") is not None
    assert world.book.pending_removals == 1
    assert any("aaaaa" in problem for problem in world.book.problems)
    del world.refuse["replica-0.aaaaa"]
    world.pass_time(5)
    world.settle()
    assert world.book.pending_removals == 0
    assert world.book.problems == []


def test_a_port_is_used_again_only_when_its_proxy_is_gone() -> None:
    world = LinkWorld(ports=2)
    world.look()
    world.serve(status(A, B))
    world.settle()
    world.refuse["replica-0.aaaaa"] = "failed"
    world.serve(status(B, C))
    world.settle()
    assert world.link("replica-0.ccccc") is None
    assert any("all 2 ports" in problem for problem in world.book.problems)
    del world.refuse["replica-0.aaaaa"]
    world.pass_time(5)
    world.settle()
    assert world.link("replica-0.ccccc") is not None
    assert world.book.problems == []


def test_the_proxy_of_a_draining_replica_stays_until_serve_lets_it_go() -> None:
    world = running(A, B)
    world.serve(status(B, draining="aaaaa"))
    world.settle()
    assert [link.name for link in world.replicas] == ["replica-1.bbbbb"]
    assert "replica-0.aaaaa" in world.proxies
    world.serve(status(B))
    world.settle()
    assert "replica-0.aaaaa" not in world.proxies


def test_draining_ends_although_serve_is_away() -> None:
    world = running(A, B)
    world.serve(status(B, draining="aaaaa"))
    world.settle()
    world.pass_time(DRAIN_S)
    world.settle()
    assert "replica-0.aaaaa" not in world.proxies


def test_a_restarted_controller_takes_no_link_away() -> None:
    world = running(A, B)
    before = world.book.links
    world.serve(status(recovering="aaaaa bbbbb"))
    world.settle()
    world.serve(status(A, B))
    world.settle()
    assert world.book.links == before


def test_an_answer_without_a_controller_keeps_the_list_for_a_while() -> None:
    world = running(A)
    world.serve(ServeStatus(known=False))
    world.pass_time(SERVE_AWAY_S - 0.1)
    world.serve(ServeStatus(known=False))
    assert world.replicas
    world.pass_time(0.1)
    world.serve(ServeStatus(known=False))
    assert world.replicas == []


def test_a_hiccup_that_ends_starts_the_patience_anew() -> None:
    world = running(A)
    for _ in range(3):
        world.serve(ServeStatus(known=False))
        world.pass_time(SERVE_AWAY_S * 0.9)
        world.serve(status(A))
    assert world.replicas


def test_toxiproxy_that_restarted_gets_all_links_again_under_the_same_names_and_ports() -> None:
    world = running(A, B)
    before = world.book.links
    world.proxies.clear()
    world.pass_time(1)
    world.look()
    assert world.book.links == before
    world.settle()
    assert world.proxies == {link.name: ProxySeen(link.port, link.upstream) for link in before}


def test_a_list_that_is_older_than_an_action_does_not_undo_it() -> None:
    world = running(A)
    old, asked_at = dict(world.proxies), world.now
    world.pass_time(0.1)
    world.serve(status(A, B))
    world.settle()
    world.book.saw_proxies(old, asked_at, world.now)
    assert world.start() == []


def test_a_restarted_service_takes_over_what_fits_and_removes_what_is_stale() -> None:
    proxies = {
        "client": ProxySeen(*CLIENT),
        "replica-1.aaaaa": ProxySeen(FIRST_PORT + 5, A.upstream),
        "replica-0.xxxxx": ProxySeen(FIRST_PORT, "127.0.0.1:39999"),
        "of somebody else": ProxySeen(5000, "127.0.0.1:1"),
    }
    world = LinkWorld(proxies=proxies)
    world.look()
    world.serve(status(A, B))
    world.settle()
    assert [(link.name, link.port) for link in world.replicas] == [
        ("replica-0.bbbbb", FIRST_PORT + 1),
        ("replica-1.aaaaa", FIRST_PORT + 5),
    ]
    assert "replica-0.xxxxx" not in world.proxies
    assert "of somebody else" in world.proxies
    assert world.done.count(Remove("client")) == 0


def test_a_stale_proxy_is_not_taken_over_for_another_replica_on_the_same_address() -> None:
    world = LinkWorld(proxies={"replica-0.xxxxx": ProxySeen(FIRST_PORT, A.upstream)})
    world.look()
    world.serve(status(A))
    world.settle()
    assert [link.name for link in world.replicas] == ["replica-0.aaaaa"]
    assert set(world.proxies) == {"client", "replica-0.aaaaa"}


def test_of_two_old_proxies_in_one_slot_one_is_taken_over() -> None:
    world = LinkWorld(
        proxies={
            "replica-0.aaaaa": ProxySeen(FIRST_PORT, A.upstream),
            "replica-0.bbbbb": ProxySeen(FIRST_PORT + 1, B.upstream),
        }
    )
    world.look()
    world.serve(status(A, B))
    world.settle()
    assert [link.name for link in world.replicas] == ["replica-0.aaaaa", "replica-1.bbbbb"]
    assert "replica-0.bbbbb" in world.proxies, "streams from before the restart may be in it"
    world.pass_time(DRAIN_S)
    world.settle()
    assert set(world.proxies) == {"client", "replica-0.aaaaa", "replica-1.bbbbb"}


def test_a_link_is_never_pointed_elsewhere() -> None:
    """A proxy whose upstream somebody changed is replaced under another name and port."""
    world = running(A)
    old = world.replicas[0]
    world.proxies[old.name] = ProxySeen(old.port, "127.0.0.1:1")
    world.pass_time(1)
    world.look()
    world.settle()
    (new,) = world.replicas
    assert new.upstream == A.upstream
    assert (new.name, new.port) != (old.name, old.port)


def test_the_same_replica_on_another_port_is_another_incarnation() -> None:
    world = running(A)
    moved = target("aaaaa", 30007)
    world.serve(status(moved))
    world.settle()
    (link,) = world.replicas
    assert link.upstream == moved.upstream
    assert link.name == "replica-0.aaaaa-2"


def test_a_port_that_somebody_else_holds_is_passed_over() -> None:
    world = LinkWorld()
    world.look()
    world.settle()
    world.serve(status(A))
    world.refuse["replica-0.aaaaa"] = "port_taken"
    for action in world.start():
        world.finish(action)
    del world.refuse["replica-0.aaaaa"]
    world.settle()
    assert world.replicas[0].port == FIRST_PORT + 1


def test_a_name_that_another_proxy_has_is_not_fought_for() -> None:
    world = LinkWorld()
    world.look()
    world.settle()
    world.serve(status(A))
    world.refuse["replica-0.aaaaa"] = "differs"
    for action in world.start():
        world.finish(action)
    world.refuse.clear()
    world.settle()
    assert world.replicas[0].name == "replica-0.aaaaa-2"


def test_the_tool_link_follows_its_replica_by_removal_and_creation_on_its_port() -> None:
    world = running(target("ttttt", 30003, "tool"))
    assert world.link("tool") is not None
    world.done.clear()
    world.serve(status())
    world.settle()
    assert world.link("tool") is not None, "it stays while the tool restarts"
    world.serve(status(target("uuuuu", 30004, "tool")))
    world.settle()
    tool = world.link("tool")
    assert tool is not None
    assert (tool.port, tool.upstream) == (8090, "127.0.0.1:30004")
    assert world.done == [Remove("tool"), Create("tool", 8090, "127.0.0.1:30004")]


def test_a_client_link_of_other_settings_is_made_anew() -> None:
    world = LinkWorld(proxies={"client": ProxySeen(CLIENT[0], "127.0.0.1:9")})
    world.look()
    world.settle()
    assert world.done == [Remove("client"), Create("client", *CLIENT)]
    assert world.link("client") is not None


@pytest.mark.parametrize("count", [1, 4, 9])
def test_failures_are_tried_again_ever_more_slowly(count: int) -> None:
    world = LinkWorld()
    world.refuse["client"] = "failed"
    world.look()
    tries = 0
    for _ in range(count):
        for action in world.start():
            world.finish(action)
            tries += 1
        assert world.start() == []
        world.pass_time(2.0)
    assert tries == count


def test_a_version_is_used_for_one_list_only() -> None:
    world = running(A)
    seen = {world.book.version: world.book.links}
    for step in (status(A, B), status(B), status(B, C), status(), status(A)):
        world.serve(step)
        world.settle()
        assert seen.setdefault(world.book.version, world.book.links) == world.book.links
