"""Decides which links there should be: pure, with the time passed in.

The book holds what should be (from Ray Serve) and what is (from Toxiproxy), and gives the actions that make the
one into the other. It looks at states and never at events, so that a lost answer, a restart of Toxiproxy or of
this service, and a first start are all the same case: whatever differs is put right.

Rules: a link's upstream and port never change while it is listed; a link leaves the list in the step in which Serve
no longer lists its replica; its proxy, which may still carry streams of a draining replica, is removed when
Serve has let the replica go, or after ``DRAIN_S``; a port is used again only when its proxy is known to be gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cluster.links import naming
from cluster.links.records import Action, Create, Kind, Link, Outcome, ProxySeen, Remove, ReplicaKind
from cluster.links.serve_status import APP_LLM, APP_SMALL, APP_TOOL, ServeStatus, Target
from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, LINK_CLIENT, LINK_STORE, LINK_TOOL, replica_label

DRAIN_S: Final = 30.0
"""Longest time that the proxy of an unlisted replica is kept for the streams in it."""
SERVE_AWAY_S: Final = 10.0
"""How long an answer without a controller is taken for a hiccup and the last list is kept."""
_PORT_TAKEN_S: Final = 30.0
_FIRST_RETRY_S: Final = 0.1
_LONGEST_RETRY_S: Final = 2.0
_KIND_OF_APP: Final[dict[str, ReplicaKind]] = {APP_LLM: KIND_REPLICA, APP_SMALL: KIND_REPLICA_SMALL}
_ORDER: Final[dict[Kind, int]] = {"client": 0, "tool": 1, "store": 2, KIND_REPLICA: 3, KIND_REPLICA_SMALL: 4}


@dataclass(slots=True)
class _Entry:
    name: str
    label: str
    kind: Kind
    port: int
    upstream: str
    replica_id: str = ""
    slot: int = -1
    leaving: bool = False
    keep_until: float = 0.0
    listed_since: float | None = None
    busy: bool = False
    failures: int = 0
    retry_at: float = 0.0
    error: str = ""

    def link(self) -> Link:
        assert self.listed_since is not None
        return Link(
            self.name, self.label, self.kind, self.port, self.upstream, self.replica_id, self.listed_since
        )


class LinkBook:
    """The links that should be, the proxies that are.

    Args:
        client: port and upstream (``host:port``) of link ``client``.
        tool_port: port of link ``tool``, whose upstream Serve tells.
        ports: for the links of replicas.
        version: of the list at the start; it must grow from one run of the service to the next.
        store: port and upstream of link ``store``; None where the store is a file.
    """

    def __init__(
        self,
        client: tuple[int, str],
        tool_port: int,
        ports: naming.Ports,
        version: int,
        *,
        store: tuple[int, str] | None = None,
    ) -> None:
        self.version = version
        self.links: tuple[Link, ...] = ()
        self.created: Counter[Kind] = Counter()
        self.removed: Counter[Kind] = Counter()
        self._client = client
        self._store = store
        self._tool_port = tool_port
        self._ports = ports
        self._ports_taken: dict[int, float] = {}
        self._entries: dict[str, _Entry] = {}
        self._status: ServeStatus | None = None
        self._serve_away_since: float | None = None
        self._there: dict[str, ProxySeen] | None = None
        self._asked_at = 0.0
        self._touched: dict[str, float] = {}
        self._out_of_ports = ""

    @property
    def ready(self) -> bool:
        """Tell whether the list rests on an answer of both Serve and Toxiproxy."""
        return self._status is not None and self._there is not None

    @property
    def pending_removals(self) -> int:
        return sum(entry.leaving for entry in self._entries.values())

    @property
    def problems(self) -> list[str]:
        """Return what does not work, in words."""
        found = [entry.error for entry in self._entries.values() if entry.error]
        return [*found, self._out_of_ports] if self._out_of_ports else found

    # --- what was seen -----------------------------------------------------------------------------------

    def saw_serve(self, status: ServeStatus, now: float) -> None:
        """Take an answer of Serve."""
        if status.known:
            self._serve_away_since = None
            self._status = status
        elif self._serve_away_since is None:
            self._serve_away_since = now
        elif now - self._serve_away_since >= SERVE_AWAY_S:
            self._status = ServeStatus(known=True)
        self._reconcile(now)

    def saw_proxies(self, proxies: Mapping[str, ProxySeen], asked_at: float, now: float) -> None:
        """Take Toxiproxy's list. Of names that were acted on since it was asked for, the book knows better."""
        if asked_at < self._asked_at:
            return
        self._asked_at = asked_at
        seen = dict(proxies)
        self._touched = {name: at for name, at in self._touched.items() if at >= asked_at}
        busy = [entry.name for entry in self._entries.values() if entry.busy]
        for name in [*self._touched, *busy]:
            seen.pop(name, None)
            if self._there is not None and name in self._there:
                seen[name] = self._there[name]
        self._there = seen
        self._reconcile(now)

    # --- what to do --------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Action]:
        """Return the actions to start now; each must be reported with ``finished``."""
        self._reconcile(now)
        if self._there is None:
            return []
        actions: list[Action] = []
        for entry in self._entries.values():
            if entry.busy or entry.retry_at > now:
                continue
            seen = self._there.get(entry.name)
            if seen is not None and (
                self._drained(entry, now) if entry.leaving else not _matches(entry, seen)
            ):
                actions.append(Remove(entry.name))
                entry.busy = True
            elif seen is None and not entry.leaving:
                actions.append(Create(entry.name, entry.port, entry.upstream))
                entry.busy = True
        return actions

    def finished(self, action: Action, outcome: Outcome, now: float, error: str = "") -> None:
        """Take the outcome of an action."""
        entry = self._entries[action.name]
        assert self._there is not None
        entry.busy = False
        entry.error = error
        self._touched[action.name] = now
        if outcome == "done":
            entry.failures, entry.retry_at = 0, 0.0
            if isinstance(action, Create):
                self._there[action.name] = ProxySeen(action.port, action.upstream)
                self.created[entry.kind] += 1
            else:
                self._there.pop(action.name, None)
                self.removed[entry.kind] += 1
        else:
            entry.failures += 1
            entry.retry_at = now + min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2 ** min(entry.failures - 1, 10))
        if outcome == "differs":
            self._there[action.name] = ProxySeen(0, "")
            entry.retry_at = 0.0
        elif outcome == "port_taken" and entry.kind in _KIND_OF_APP.values():
            self._ports_taken[entry.port] = now + _PORT_TAKEN_S
            del self._entries[entry.name]  # it comes back under another port
        self._reconcile(now)

    # --- inside ------------------------------------------------------------------------------------------

    def _reconcile(self, now: float) -> None:
        if self._there is None:
            return
        self._ports_taken = {port: until for port, until in self._ports_taken.items() if until > now}
        port, upstream = self._client
        self._fix(LINK_CLIENT, "client", port, upstream, "")
        if self._store is not None:
            self._fix(LINK_STORE, "store", *self._store, "")
        if self._status is not None:
            self._follow_tool(self._status)
            self._follow_replicas(self._status, now)
            self._remove_strangers(self._status, now)
        for entry in list(self._entries.values()):
            seen = self._there.get(entry.name)
            if entry.leaving:
                if seen is None and not entry.busy:
                    del self._entries[entry.name]
            elif seen is not None and _matches(entry, seen) and entry.listed_since is None:
                entry.listed_since = now
        self._publish()

    def _fix(self, name: str, kind: Kind, port: int, upstream: str, replica_id: str) -> None:
        """See to a link of a fixed name and port; when its upstream moves, it is removed and made again."""
        entry = self._entries.get(name)
        if entry is None:
            self._entries[name] = _Entry(name, name, kind, port, upstream, replica_id)
        elif entry.upstream != upstream and not entry.busy:
            entry.upstream, entry.replica_id, entry.listed_since = upstream, replica_id, None

    def _follow_tool(self, status: ServeStatus) -> None:
        """Point to the tool's replica; while it has none the link stays, for its address is a fixed one."""
        target = next((target for target in status.running if target.app == APP_TOOL), None)
        if target is not None:
            self._fix(LINK_TOOL, "tool", self._tool_port, target.upstream, target.replica_id)

    def _follow_replicas(self, status: ServeStatus, now: float) -> None:
        assert self._there is not None
        running = {
            (target.replica_id, target.upstream): target
            for target in status.running
            if target.app in _KIND_OF_APP
        }
        for entry in self._replicas():
            if (entry.replica_id, entry.upstream) in running:
                seen = self._there.get(entry.name)
                if seen is None or _matches(entry, seen) or entry.busy:
                    del running[entry.replica_id, entry.upstream]
                    continue
            elif entry.replica_id in status.recovering:
                continue
            entry.leaving, entry.keep_until = True, now + DRAIN_S
        self._out_of_ports = ""
        for target in running.values():
            try:
                self._enter(target)
            except naming.NoPortError as error:
                self._out_of_ports = str(error)

    def _enter(self, target: Target) -> None:
        """Make an entry for a new incarnation, around its proxy if an earlier run of the service made one."""
        assert self._there is not None
        kind = _KIND_OF_APP[target.app]
        slots = {entry.slot for entry in self._replicas() if entry.kind == kind}
        for name, seen in self._there.items():
            parsed = naming.parse(name)
            if (
                parsed is not None
                and name not in self._entries
                and parsed.kind == kind
                and parsed.slot not in slots
                and parsed.short_id == naming.short_id(target.replica_id)
                and seen.upstream == target.upstream
                and seen.port in self._ports
            ):
                slot, port = parsed.slot, seen.port
                break
        else:
            slot = naming.lowest_free_slot(slots)
            name = naming.link_name(kind, slot, target.replica_id, {*self._entries, *self._there})
            port = self._ports.take(self._ports_in_use())
        self._entries[name] = _Entry(
            name, replica_label(name), kind, port, target.upstream, target.replica_id, slot
        )

    def _remove_strangers(self, status: ServeStatus, now: float) -> None:
        """Let go of proxies of replicas that nobody asked for: an earlier run of the service left them."""
        assert self._there is not None
        for name, seen in self._there.items():
            parsed = naming.parse(name)
            if parsed is not None and name not in self._entries:
                owner = next((id_ for id_ in status.present if naming.short_id(id_) == parsed.short_id), "")
                stranger = _Entry(name, replica_label(name), parsed.kind, seen.port, seen.upstream, owner)
                stranger.leaving, stranger.keep_until = True, now + DRAIN_S
                self._entries[name] = stranger

    def _drained(self, entry: _Entry, now: float) -> bool:
        assert self._status is not None
        return entry.replica_id not in self._status.present or now >= entry.keep_until

    def _replicas(self) -> list[_Entry]:
        kinds = _KIND_OF_APP.values()
        return [entry for entry in self._entries.values() if entry.kind in kinds and not entry.leaving]

    def _ports_in_use(self) -> set[int]:
        assert self._there is not None
        there: Iterable[int] = (seen.port for seen in self._there.values())
        return {*(entry.port for entry in self._entries.values()), *there, *self._ports_taken}

    def _publish(self) -> None:
        listed = [
            entry for entry in self._entries.values() if entry.listed_since is not None and not entry.leaving
        ]
        listed.sort(key=lambda entry: (_ORDER[entry.kind], entry.slot))
        links = tuple(entry.link() for entry in listed)
        if links != self.links:
            self.links = links
            self.version += 1


def _matches(entry: _Entry, seen: ProxySeen) -> bool:
    return (entry.port, entry.upstream) == (seen.port, seen.upstream)
