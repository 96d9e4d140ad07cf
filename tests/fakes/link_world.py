"""A LinkBook with a Toxiproxy that is a dict: what the book asks for is done, or fails, as the test says."""

from __future__ import annotations

from cluster.links.book import LinkBook
from cluster.links.naming import Ports
from cluster.links.records import Action, Create, Link, Outcome, ProxySeen
from cluster.links.serve_status import ServeStatus, Target

FIRST_PORT = 21000
CLIENT = (8080, "127.0.0.1:8081")
TOOL_PORT = 8090


def target(replica_id: str, port: int = 30000, app: str = "llm") -> Target:
    return Target(app, replica_id, f"127.0.0.1:{port}")


def status(*running: Target, recovering: str = "", draining: str = "") -> ServeStatus:
    """Return a status; ids of other replicas are given as words in a string."""
    ids = {replica.replica_id for replica in running}
    return ServeStatus(
        True,
        running,
        frozenset(recovering.split()),
        frozenset({*ids, *recovering.split(), *draining.split()}),
    )


class LinkWorld:
    """Steps time and the book; ``proxies`` is what Toxiproxy has."""

    def __init__(
        self,
        ports: int = 8,
        proxies: dict[str, ProxySeen] | None = None,
        store: tuple[int, str] | None = None,
    ) -> None:
        self.proxies: dict[str, ProxySeen] = {} if proxies is None else proxies
        self.now = 1000.0
        self.book = LinkBook(CLIENT, TOOL_PORT, Ports(FIRST_PORT, ports), version=1, store=store)
        self.refuse: dict[str, Outcome] = {}
        """Outcome of actions by name of the link; all others succeed."""
        self.done: list[Action] = []

    def serve(self, seen: ServeStatus) -> None:
        self.book.saw_serve(seen, self.now)

    def look(self) -> None:
        """Let the book see Toxiproxy's list."""
        self.book.saw_proxies(dict(self.proxies), self.now, self.now)

    def start(self) -> list[Action]:
        return self.book.due(self.now)

    def finish(self, action: Action) -> None:
        """Carry an action out on the dict and report it."""
        outcome = self.refuse.get(action.name, "done")
        if outcome == "done":
            if isinstance(action, Create):
                assert action.name not in self.proxies, f"{action} although there is one"
                assert action.port not in {seen.port for seen in self.proxies.values()}, (
                    f"{action}: port in use"
                )
                self.proxies[action.name] = ProxySeen(action.port, action.upstream)
            else:
                self.proxies.pop(action.name, None)
            self.done.append(action)
        self.book.finished(action, outcome, self.now, "" if outcome == "done" else f"{action.name} {outcome}")

    def settle(self, steps: int = 20) -> None:
        """Carry out whatever is due until nothing is, at this moment."""
        for _ in range(steps):
            actions = self.start()
            if not actions:
                return
            for action in actions:
                self.finish(action)
        raise AssertionError(f"the book does not settle: {actions}")

    def pass_time(self, duration_s: float) -> None:
        self.now += duration_s

    @property
    def replicas(self) -> list[Link]:
        return [link for link in self.book.links if link.kind == "replica"]

    def link(self, name: str) -> Link | None:
        return next((link for link in self.book.links if link.name == name), None)
