"""What the guard of the capacity may do: let in, keep waiting for a while, or turn away, and forget nobody."""

from __future__ import annotations

from typing import Any, ClassVar

from policies.admission import Admission
from policies.errors import CallRefused
from policies.events import Admitted, AttemptStarted, Event
from policies.priority import Priority
from policies.work import Backlog
from tests.simulation.judging import Invariant

EPSILON_S = 1e-6


class NobodyWaitsTooLong(Invariant):
    """A call gets its first attempt or its refusal within the longest wait, whatever its importance."""

    name: ClassVar[str] = "waits are bounded"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        knobs = self.world.plan.knobs
        self._longest_s = min(
            knobs.ttft_objective_s, knobs.admission.longest_wait_s or knobs.ttft_objective_s
        )

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.attempt == 1:
            self._check(event.request_id, at_s, "its first attempt")

    def at_end(self) -> None:
        for name, client in self.world.clients.items():
            if isinstance(client.error, CallRefused) and client.ended_at is not None:
                self._check(name, client.ended_at, "its refusal")

    def _check(self, name: str, at_s: float, what: str) -> None:
        waited_s = at_s - self.world.clients[name].plan.at_s
        if waited_s > self._longest_s + EPSILON_S:
            self.broken(
                f"{name} waited {waited_s:.3f} s for {what}, the longest wait is {self._longest_s:g} s"
            )


class PermitsMatch(Invariant):
    """Permits are held by the calls that were let in and are not over; all others that are here wait in the queue."""

    name: ClassVar[str] = "permits match the calls"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._let_in: set[str] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if not isinstance(event, Admitted):
            return
        if event.request_id in self._let_in:
            self.broken(f"{event.request_id} was let in twice")
        self._let_in.add(event.request_id)
        guard = self._guard
        used, limit = guard.in_use(), guard.limit
        if used > max(1.0, limit) + EPSILON_S and self.world.pipeline.rotation():
            self.broken(f"{event.request_id} was let in as number {used}, the limit is {limit:.2f}")

    def look(self) -> None:
        if self.world.pipeline.admission is None:
            return
        clients = self.world.clients
        here = {name for name, one in clients.items() if one.call is not None and not one.endings}
        inside = here & self._let_in
        if self._guard.in_use() != len(inside):
            self.broken(
                f"{self._guard.in_use()} permits are held, {len(inside)} calls were let in and are here"
            )
        if self._guard.queued() != len(here - inside):
            self.broken(f"{self._guard.queued()} calls are queued, {len(here - inside)} wait")

    def at_end(self) -> None:
        if self.world.pipeline.admission is None:
            return
        guard = self._guard
        held = {one.label: guard.in_use(one) for one in Priority if guard.in_use(one)}
        if held or guard.active_tokens or guard.queued() or guard.backlog() != Backlog():
            left = f"permits {held}, {guard.active_tokens} tokens, {guard.queued()} queued, {guard.backlog()}"
            self.broken(f"all calls are over, but there are {left}")

    @property
    def _guard(self) -> Admission:
        guard = self.world.pipeline.admission
        assert guard is not None
        return guard


class LimitInBounds(Invariant):
    """The limit stays within its bounds, so that it can neither close the service nor let everything in."""

    name: ClassVar[str] = "limits stay in bounds"

    def look(self) -> None:
        guard, knobs = self.world.pipeline.admission, self.world.plan.knobs.limits
        if guard is None:
            return
        count = len(self.world.pipeline.rotation())
        most = 4.0 * self.world.plan.replicas.slots if knobs.most is None else knobs.most
        if not knobs.least * count - EPSILON_S <= guard.limit <= most * count + EPSILON_S:
            self.broken(f"the limit of {count} replicas is {guard.limit:.2f}")
