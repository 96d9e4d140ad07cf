"""Whoever could have been helped by another attempt has had one, or was told why not."""

from __future__ import annotations

from typing import Any, ClassVar

from policies.errors import AttemptError, NotResumable
from policies.events import Event, RetrySuppressed
from tests.simulation.clients import Client
from tests.simulation.judging import Invariant


class FailuresHaveAReason(Invariant):
    """A call that may be repeated fails only for want of attempts, budget, time or another replica."""

    name: ClassVar[str] = "failures have a reason"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._suppressed: set[str] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, RetrySuppressed):
            self._suppressed.add(event.request_id)

    def at_end(self) -> None:
        for name, client in self.world.clients.items():
            error = client.error
            if isinstance(error, NotResumable) and self._may_go_on(client):
                self.broken(f"{name} could have gone on, but was told {error!r}")
            if not (isinstance(error, AttemptError) and error.retryable and client.plan.idempotent):
                continue
            if self.active("retry") and self._may_go_on(client) and name not in self._suppressed:
                self.broken(f"{name} failed with {error!r}, and nothing says why it was not tried again")

    def _may_go_on(self, client: Client) -> bool:
        """Tell whether the answer could start again, or be continued."""
        assert client.call is not None
        return not client.call.delivery.started or (self.active("resume") and client.plan.resumable is True)
