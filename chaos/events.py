"""Copies the gateway's events into the history while an arm runs, before its bounded ring forgets them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable

from chaos.admin import Admin, AdminError
from chaos.history import GatewayEventRecord

INTERVAL_S = 1.0
FROM_THE_END = 2**53
"""A sequence number that no event reaches: asks only for the newest number."""


class EventCopier:
    """Copies what happens after :meth:`begin`. ``records`` keeps the copies, ``dropped`` counts what was lost.

    What a gateway that was killed had not told yet is lost with it, uncounted; ``restarts`` counts those.
    """

    def __init__(self, admin: Admin, arm: str, sink: Callable[[GatewayEventRecord], None]) -> None:
        self.records: list[GatewayEventRecord] = []
        self.dropped = 0
        self.restarts = 0
        self._admin = admin
        self._arm = arm
        self._sink = sink
        self._after = 0

    async def begin(self) -> None:
        """Skip everything that has happened so far."""
        self._after = (await self._admin.events(FROM_THE_END)).last

    async def copy(self) -> None:
        """Copy what is new."""
        page = await self._admin.events(self._after)
        if page.last < self._after:  # another process, which counts from 1 again
            self.restarts += 1
            page = await self._admin.events(0)
        self._after = page.last
        self.dropped += page.dropped
        for raw in page.events:
            detail = {key: value for key, value in raw.items() if key not in ("seq", "at", "event")}
            record = GatewayEventRecord(self._arm, str(raw["event"]), float(raw["at"]), detail)
            self.records.append(record)
            self._sink(record)

    async def run(self) -> None:
        """Copy for ever; a gateway that does not answer for a while is asked again."""
        while True:
            with contextlib.suppress(AdminError):
                await self.copy()
            await asyncio.sleep(INTERVAL_S)


def first_token_at(events: Iterable[GatewayEventRecord], replicas: Collection[str]) -> float | None:
    """Return when one of ``replicas`` (links) first gave a first token, or None."""
    on_replica: set[tuple[str, int]] = set()
    for event in sorted(events, key=lambda record: record.at):
        if event.event == "attempt_started" and event.detail.get("replica") in replicas:
            on_replica.add(_attempt(event))
        elif event.event == "attempt_first_token" and _attempt(event) in on_replica:
            return event.at
    return None


def _attempt(event: GatewayEventRecord) -> tuple[str, int]:
    return str(event.detail.get("request_id", "")), int(event.detail.get("attempt") or 0)


def awaiting_at(
    events: Iterable[GatewayEventRecord], replica: str, struck_at: float, injected_at: float
) -> list[str]:
    """Return the request ids that awaited their first token on ``replica`` (a link) when a fault struck it.

    An attempt counts when it began by ``injected_at``, had not ended by ``struck_at`` and had no first token by
    ``injected_at``. Two moments, because a connection may be lost before the call that kills returns.
    """
    waiting: set[tuple[str, int]] = set()
    for event in sorted(events, key=lambda record: record.at):
        if event.at > injected_at:
            break
        if event.event == "attempt_started" and event.detail.get("replica") == replica:
            waiting.add(_attempt(event))
        elif event.event == "attempt_first_token" or (
            event.event == "attempt_ended" and event.at <= struck_at
        ):
            waiting.discard(_attempt(event))
    return sorted(request_id for request_id, _ in waiting)
