"""Which replicas there are and where: the links service says so, and is asked by long poll."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Final

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, LINK_TOOL, SMALL_PATH
from policies.fleet import Fleet, Replica

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 25.0
_PAUSES_S: Final = (0.1, 2.0)
"""Least and longest pause after a failed poll."""


class Link(BaseModel):
    """One link, as far as the gateway needs it. ``listen`` is ``host:port``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    kind: str
    listen: str


class Links(BaseModel):
    """The answer of ``GET /links``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int
    links: list[Link]


class Discovery:
    """Keeps the fleets in step with the links service; while that is away the last list stands.

    Args:
        links_url: root URL of the links service.
        fleet: the replicas of the served model.
        session: for the questions.
        tool_address: where the tool is reached until the service names a place.
        small_fleet: the replicas of the smaller model, if somebody wants to know them; their addresses end in
            the path below which they answer.
    """

    def __init__(
        self,
        links_url: str,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        *,
        tool_address: str,
        small_fleet: Fleet | None = None,
    ) -> None:
        self._url = f"{links_url}/links"
        self._fleet = fleet
        self._small_fleet = Fleet() if small_fleet is None else small_fleet
        self._session = session
        self._version = -1
        self.tool_address = tool_address
        """Where the tool is reached, ``host:port``; the configured place until the service names one."""
        self.synced = asyncio.Event()
        """Set once a list has been received."""

    async def run(self) -> None:
        """Follow the links for ever."""
        pause_s = _PAUSES_S[0]
        while True:
            try:
                self.take(await self._poll())
                pause_s = _PAUSES_S[0]
                continue
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                _LOG.warning(
                    "the links service at %s does not answer (%s)", self._url, str(error) or type(error)
                )
            except (ValidationError, ValueError) as error:
                _LOG.error("the links service at %s answered something else: %s", self._url, error)
            self._version = -1  # it may have been restarted, and count from the start again
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(_PAUSES_S[1], pause_s * 2)

    def take(self, answer: Links) -> None:
        """Make the fleet what the answer says."""
        self._version = answer.version
        self._fleet.update(
            Replica(link.name, link.listen) for link in answer.links if link.kind == KIND_REPLICA
        )
        self._small_fleet.update(
            Replica(link.name, link.listen + SMALL_PATH)
            for link in answer.links
            if link.kind == KIND_REPLICA_SMALL
        )
        for link in answer.links:
            if link.kind == LINK_TOOL:
                self.tool_address = link.listen
        self.synced.set()

    async def _poll(self) -> Links:
        query: dict[str, Any] = {"after": self._version, "wait_s": 0 if self._version < 0 else _POLL_S}
        limit = aiohttp.ClientTimeout(total=_POLL_S + 5.0, sock_connect=5.0)
        async with self._session.get(self._url, params=query, timeout=limit) as response:
            response.raise_for_status()
            return Links.model_validate_json(await response.read())
