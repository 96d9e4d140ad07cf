"""The tool as this package uses it, through its link: the ledger of what it really did, and its test control.

What a client was told proves nothing about an effect; the ledger does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp

from chaos.admin import Admin
from chaos.substrate import Substrate, SubstrateError
from cluster.public import LINK_TOOL, TOOL_PATH

ANSWER_WITHIN_S: Final = 5.0
TRANSFER: Final = "submit_transfer"
"""The method with an effect."""
_numbers = itertools.count(1)


class ToolUnreachable(SubstrateError):
    """The tool did not answer over its link; the text says what was asked."""


class AnswerLost(Exception):
    """The connection ended without an answer: what was asked may have been done."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the ledger. ``seq`` counts from 1; ``sender`` is what the caller of the gateway named."""

    seq: int
    at: float
    key: str
    sender: str


class Tool:
    """Asks the tool. Use as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    async def of(cls, admin: Admin, substrate: Substrate) -> Self:
        """Return the tool behind link ``tool``.

        Raises:
            ToolUnreachable: there is no such link.
        """
        found = next((link for link in await admin.links() if link.name == LINK_TOOL), None)
        if found is None:
            raise ToolUnreachable(f"there is no link {LINK_TOOL!r}; 'brownout status' tells what runs")
        return cls(f"http://{await substrate.reachable(found.listen)}{TOOL_PATH}")

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def effects(self, after: int = 0) -> list[Effect]:
        """Return what the tool did after line ``after``."""
        raw = await self._ask("GET", f"/ledger?after={after}")
        return [
            Effect(int(one["seq"]), float(one["at"]), str(one["idempotency_key"]), str(one["sender"]))
            for one in raw["effects"]
        ]

    async def faults(self) -> dict[str, Any]:
        """Return the faults that its control has in force."""
        return dict(await self._ask("GET", "/control"))

    async def set_faults(self, faults: Mapping[str, Any]) -> dict[str, Any]:
        """Put faults in force in place of those before, and return them as the tool took them."""
        return dict(await self._ask("POST", "/control", dict(faults)))

    async def reset_faults(self) -> None:
        """Take every fault away. Safe twice."""
        await self._ask("DELETE", "/control")

    async def transfer(self, sender: str, key: str) -> int:
        """Submit a transfer and return the line that it became.

        Raises:
            AnswerLost: nobody said whether it was done.
        """
        params = {"from": sender, "to": "probe", "amount": "1", "idempotency_key": key}
        message = {"jsonrpc": "2.0", "id": next(_numbers), "method": TRANSFER, "params": params}
        return int((await self._ask("POST", "", message))["result"]["seq"])

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        if self._session is None:
            raise RuntimeError("Tool is used outside 'async with'")
        what = f"{method} {self._url}{path}"
        try:
            async with (
                asyncio.timeout(ANSWER_WITHIN_S),
                self._session.request(method, self._url + path, json=body) as response,
            ):
                answer = await response.json()
                if response.status >= 400:
                    raise ToolUnreachable(f"{what}: answered {response.status}: {str(answer)[:200]}")
                return answer
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError) as error:
            raise AnswerLost(what) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise ToolUnreachable(f"{what}: {type(error).__name__}: {error}") from error
