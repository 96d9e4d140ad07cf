"""What holds for the links whatever Serve, Toxiproxy and the network do, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.links.book import DRAIN_S, SERVE_AWAY_S
from cluster.links.records import Action, Link, ProxySeen
from cluster.links.serve_status import ServeStatus, Target
from tests.fakes.link_world import LinkWorld, status, target

IDS = st.sampled_from(["aaaaa", "1aaaaa", "2aaaaa", "bbbbb", "ccccc", "ddddd"])
"""Some end alike: the short id in a link's name is then the same."""
PORTS = st.integers(30000, 30003)


class LinksUnderFire(RuleBasedStateMachine):
    """Events in any order; the invariants are those that the gateway and the experiments lean on."""

    @initialize()
    def begin(self) -> None:
        self.world = LinkWorld(ports=6)
        self.under_way: list[Action] = []
        self.running: dict[str, Target] = {}
        self.excused: set[str] = set()
        self.older: tuple[dict[str, ProxySeen], float] | None = None
        self.addresses: dict[str, tuple[int, str]] = {}

    @rule(replica=IDS, port=PORTS)
    def replica_runs(self, replica: str, port: int) -> None:
        self.running[replica] = target(replica, port)
        self._tell()

    @rule(replica=IDS)
    def replica_ends(self, replica: str) -> None:
        self.running.pop(replica, None)
        self._tell()

    @rule()
    def controller_restarts(self) -> None:
        self.excused = set(self.running)
        self.world.serve(status(recovering=" ".join(self.running)))

    @rule()
    def serve_is_not_found(self) -> None:
        self.world.serve(ServeStatus(known=False))

    @rule()
    def start_what_is_due(self) -> None:
        self.under_way += self.world.start()

    @rule(data=st.data())
    def one_action_ends(self, data: st.DataObject) -> None:
        if self.under_way:
            action = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
            self.world.refuse = {action.name: "failed"} if data.draw(st.booleans()) else {}
            self.world.finish(action)
            self.world.refuse = {}

    @rule()
    def look_at_toxiproxy(self) -> None:
        self.world.pass_time(0.01)
        self.world.look()

    @rule()
    def toxiproxy_is_asked(self) -> None:
        self.older = (dict(self.world.proxies), self.world.now)

    @rule()
    def its_answer_comes_late(self) -> None:
        if self.older is not None:
            self.world.book.saw_proxies(*self.older, self.world.now)
            self.older = None

    @rule()
    def toxiproxy_restarts(self) -> None:
        self.world.proxies.clear()
        self.older = None

    @rule(duration_s=st.sampled_from([0.1, 1.0, 40.0]))
    def time_passes(self, duration_s: float) -> None:
        self.world.pass_time(duration_s)

    def _tell(self) -> None:
        self.excused = set()
        self.world.serve(status(*self.running.values()))

    @invariant()
    def a_name_never_stands_for_another_port_or_upstream_while_listed(self) -> None:
        listed: dict[str, Link] = {
            link.name: link for link in self.world.book.links if link.kind == "replica"
        }
        self.addresses = {name: at for name, at in self.addresses.items() if name in listed}
        for name, link in listed.items():
            assert self.addresses.setdefault(name, (link.port, link.upstream)) == (link.port, link.upstream)

    @invariant()
    def only_replicas_that_serve_lists_are_listed(self) -> None:
        known = {(one.replica_id, one.upstream) for one in self.running.values()}
        for link in self.world.replicas:
            assert (link.replica_id, link.upstream) in known or link.replica_id in self.excused

    @invariant()
    def no_two_links_share_a_port_or_a_slot(self) -> None:
        links = self.world.book.links
        assert len({link.port for link in links}) == len(links)
        assert len({link.label for link in links}) == len(links)

    def teardown(self) -> None:
        """When the faults end, the links become what Serve says, and nothing stale is left."""
        if not hasattr(self, "world"):
            return
        for action in self.under_way:
            self.world.finish(action)
        self._tell()
        for _ in range(6):
            self.world.pass_time(DRAIN_S + SERVE_AWAY_S)
            self.world.look()
            self.world.settle()
        wanted = {one.upstream for one in self.running.values()}
        assert {link.upstream for link in self.world.replicas} == wanted
        assert self.world.proxies == {
            link.name: ProxySeen(link.port, link.upstream) for link in self.world.book.links
        }
        assert self.world.book.problems == []


LinksUnderFire.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLinksUnderFire = LinksUnderFire.TestCase
