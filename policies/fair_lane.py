"""The waiters of one priority, fair between tenants by token work.

Tenants take turns by the work that they were given (start-time fair queueing): each has a virtual time, which moves
by the tokens of what it is served, and the one that lies furthest back is next. So a tenant with a thousand
calls waits behind itself and not in front of everybody, and one that comes back after a while has saved up nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Generic, TypeVar

from policies.codel import ControlledDelay
from policies.priority import Priority
from policies.work import Work


class Waiter:
    """One call that waits; ``since`` is when it came, in the clock's seconds."""

    __slots__ = ("large", "priority", "since", "tenant", "work")

    def __init__(
        self, priority: Priority, tenant: str, work: Work, since: float, *, large: bool = False
    ) -> None:
        self.priority = priority
        self.tenant = tenant
        self.work = work
        self.since = since
        self.large = large


W = TypeVar("W", bound=Waiter)


class _Tenant(Generic[W]):
    """One tenant in one lane; ``start`` is the virtual time, in tokens served, at which its next call begins."""

    __slots__ = ("entry", "start", "waiters")

    def __init__(self, start: float) -> None:
        self.start = start
        self.waiters: OrderedDict[W, None] = OrderedDict()
        self.entry: tuple[float, int, _Tenant[W]] | None = None
        """Its place in the heap; an entry that is no longer its tenant's is passed over."""


class Lane(Generic[W]):
    """One order of waiting. ``most_tenants`` bounds what is remembered of tenants that do not wait."""

    def __init__(self, priority: Priority, codel: ControlledDelay, most_tenants: int) -> None:
        self.priority = priority
        self.order: OrderedDict[W, None] = OrderedDict()
        """Everybody, in the order in which they came."""
        self.codel = codel
        self.credit = 0.0
        """How much of a turn is owed to it by more important lanes."""
        self.prompt_tokens = self.output_tokens = 0
        self._most_tenants = most_tenants
        self._heap: list[tuple[float, int, _Tenant[W]]] = []
        self._entries = 0
        self._virtual = 0.0
        self._busy: dict[str, _Tenant[W]] = {}
        self._idle: OrderedDict[str, _Tenant[W]] = OrderedDict()

    def oldest(self) -> W:
        """Return who has waited longest; somebody must wait."""
        return next(iter(self.order))

    def in_turn(self) -> W:
        """Return who is next: of the tenant whose turn it is the first, or while overloaded the last, that came."""
        self._drop_stale()
        waiters = self._heap[0][2].waiters
        return next(reversed(waiters) if self.codel.overloaded else iter(waiters))

    def observe(self, now: float) -> None:
        """Let the delay of the lane be judged."""
        self.codel.observe(now - self.oldest().since if self.order else 0.0, now)

    def add(self, waiter: W) -> None:
        """Let it wait."""
        tenant = self._busy.get(waiter.tenant)
        known = tenant is not None
        if tenant is None:
            tenant = self._idle.pop(waiter.tenant, None) or _Tenant(self._virtual)
            self._busy[waiter.tenant] = tenant
        tenant.waiters[waiter] = None
        self.order[waiter] = None
        self.prompt_tokens += waiter.work.prompt_tokens
        self.output_tokens += waiter.work.output_tokens
        if not known:
            self._move(tenant, max(self._virtual, tenant.start))

    def remove(self, waiter: W) -> None:
        """It no longer waits, for whatever reason."""
        tenant = self._busy[waiter.tenant]
        del tenant.waiters[waiter], self.order[waiter]
        self.prompt_tokens -= waiter.work.prompt_tokens
        self.output_tokens -= waiter.work.output_tokens
        if not tenant.waiters:
            tenant.entry = None
            del self._busy[waiter.tenant]
            self._rest(waiter.tenant, tenant)
        if not self.order:
            self.credit = 0.0

    def charge(self, name: str, tokens: float) -> None:
        """The tenant begins that much work, so that its next call begins that much later."""
        tenant = self._busy.get(name)
        if tenant is None:
            tenant = self._idle.pop(name, None) or _Tenant(self._virtual)
            self._rest(name, tenant)
        start = max(self._virtual, tenant.start)
        # Virtual time follows what is served: who comes later begins no earlier than what is served now.
        self._drop_stale()
        self._virtual = max(self._virtual, min(start, self._heap[0][0]) if self._heap else start)
        self._move(tenant, start + tokens)

    def settle(self, name: str, tokens: float) -> None:
        """The work came out by so many tokens larger (smaller, when negative) than was charged."""
        tenant = self._busy.get(name) or self._idle.get(name)
        if tenant is not None:
            self._move(tenant, max(self._virtual, tenant.start + tokens))

    def _move(self, tenant: _Tenant[W], start: float) -> None:
        tenant.start = start
        if not tenant.waiters:
            return
        self._entries += 1
        tenant.entry = (start, self._entries, tenant)
        heapq.heappush(self._heap, tenant.entry)
        if len(self._heap) > 2 * len(self._busy) + 64:
            self._heap = [one.entry for one in self._busy.values() if one.entry is not None]
            heapq.heapify(self._heap)

    def _drop_stale(self) -> None:
        heap = self._heap
        while heap and heap[0][2].entry is not heap[0]:
            heapq.heappop(heap)

    def _rest(self, name: str, tenant: _Tenant[W]) -> None:
        self._idle[name] = tenant
        if len(self._idle) > self._most_tenants:
            self._idle.popitem(last=False)
