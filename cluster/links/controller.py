"""Keeps the book of links up to date and carries out what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from cluster.links.book import LinkBook
from cluster.links.records import Action, Create, Outcome
from cluster.links.serve_client import ServeClient, ServeUnreachableError
from cluster.links.toxiproxy_client import PortTakenError, ProxyDiffersError, ToxiproxyClient, ToxiproxyError

_log = logging.getLogger(__name__)

ASK_SERVE_S: Final = 0.25
"""Pause between two questions to Serve while something changes: a new replica must be listed within a second."""
ASK_SERVE_SETTLED_S: Final = 0.5
"""The same while all replicas run. Four questions a second cost Ray about 5 % of a core, two about half of it."""
ASK_SERVE_SLOWEST_S: Final = 0.7
_COST: Final = 10
"""The pause is at least so many times what the answer took, so that a slow Ray is not asked all the time."""
ASK_PROXIES_S: Final = 1.0
"""Pause between two looks at Toxiproxy, which forgets everything when it restarts."""
ASK_PROXIES_AWAY_S: Final = 0.25


class Controller:
    """The I/O around one LinkBook.

    Args:
        listen_host: host that the proxies listen on, as the link proxy sees it.
    """

    def __init__(
        self, book: LinkBook, serve: ServeClient, toxiproxy: ToxiproxyClient, listen_host: str
    ) -> None:
        self.book = book
        self.serve_error = "Ray Serve has not answered yet"
        self.toxiproxy_error = "the link proxy has not answered yet"
        self.serve_answers = 0
        self.serve_failures = 0
        self._serve = serve
        self._toxiproxy = toxiproxy
        self._listen_host = listen_host
        self._group: asyncio.TaskGroup | None = None
        self._changed = asyncio.Condition()
        self._told = book.version

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._watch_proxies())
            self._group.create_task(self._watch_serve())

    async def wait_for_change(self, version: int, wait_s: float) -> None:
        """Return when the list has another version than that one, or after ``wait_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.book.version != version)

    async def _watch_serve(self) -> None:
        while True:
            started = time.monotonic()
            shortest = ASK_SERVE_S
            try:
                status = await self._serve.status()
            except ServeUnreachableError as error:
                self.serve_failures += 1
                self.serve_error = _noted("Ray Serve", self.serve_error, str(error))
            else:
                self.serve_answers += 1
                away = (
                    "" if status.known else "the dashboard finds no Serve controller; the last list is kept"
                )
                self.serve_error = _noted("Ray Serve", self.serve_error, away)
                self.book.saw_serve(status, time.time())
                if status.settled:
                    shortest = ASK_SERVE_SETTLED_S
            await self._act()
            took = time.monotonic() - started
            await asyncio.sleep(max(shortest, min(ASK_SERVE_SLOWEST_S, took * _COST)))

    async def _watch_proxies(self) -> None:
        while True:
            asked_at = time.time()
            try:
                proxies = await self._toxiproxy.proxies()
            except ToxiproxyError as error:
                self.toxiproxy_error = _noted("link proxy", self.toxiproxy_error, str(error))
            else:
                self.toxiproxy_error = _noted("link proxy", self.toxiproxy_error, "")
                self.book.saw_proxies(proxies, asked_at, time.time())
            await self._act()
            await asyncio.sleep(ASK_PROXIES_AWAY_S if self.toxiproxy_error else ASK_PROXIES_S)

    async def _act(self) -> None:
        """Start what is due, and wake those who wait for a new list."""
        assert self._group is not None
        for action in self.book.due(time.time()):
            self._group.create_task(self._carry_out(action))
        if self.book.version != self._told:
            self._told = self.book.version
            names = ", ".join(f"{link.name} -> {link.upstream}" for link in self.book.links)
            _log.info("links, version %d: %s", self.book.version, names or "none")
            async with self._changed:
                self._changed.notify_all()

    async def _carry_out(self, action: Action) -> None:
        outcome: Outcome = "done"
        text = ""
        try:
            if isinstance(action, Create):
                listen = f"{self._listen_host}:{action.port}"
                await self._toxiproxy.create(action.name, listen, action.upstream)
            else:
                await self._toxiproxy.remove(action.name)
        except ToxiproxyError as error:
            text = str(error)
            _log.warning("%s", text)
            match error:
                case PortTakenError():
                    outcome = "port_taken"
                case ProxyDiffersError():
                    outcome = "differs"
                case _:
                    outcome = "failed"
        self.book.finished(action, outcome, time.time(), text)
        await self._act()


def _noted(who: str, before: str, now: str) -> str:
    """Log a change between answering and not answering, and return the new error."""
    if now and not before:
        _log.warning("%s is away: %s", who, now)
    elif before and not now:
        _log.info("%s answers", who)
    return now
