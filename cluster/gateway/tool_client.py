"""Asks the tool, once, over JSON-RPC 2.0.

Never repeated here: a call whose answer was lost may have had its effect, and only who knows the method knows what
that means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from cluster.gateway.bulkhead import Bulkheads
from cluster.gateway.tools import ToolMethod
from cluster.public import TOOL_PATH
from cluster.tool.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from cluster.tool.methods import KEY_REUSED
from policies.clock import Clock, Deadline
from policies.errors import DeadlineExceeded, ToolBusy, ToolDeadline, ToolError, ToolRejected

_WRONG_CALL: Final = (INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, KEY_REUSED)
"""Codes that say that the caller is wrong, and not that the tool is ill."""


class ToolFailed(ToolError):
    """The tool itself answered, with an error: whatever it did, it does no more."""


class ToolClient:
    """One JSON-RPC endpoint, with a bulkhead for each of its methods."""

    def __init__(
        self, session: aiohttp.ClientSession, clock: Clock, methods: Mapping[str, ToolMethod]
    ) -> None:
        self._session = session
        self._clock = clock
        self._bulkheads = Bulkheads(methods)

    async def ask(
        self,
        address: str,
        method: str,
        params: dict[str, Any],
        request_id: str,
        *,
        limit_s: float | None,
        deadline: Deadline,
    ) -> Any:
        """Return the tool's result. Waiting for a place in the method's bulkhead counts.

        Raises:
            ToolBusy: there was no place within ``limit_s``; the tool was not asked.
            ToolDeadline: no answer within ``limit_s``.
            DeadlineExceeded: the deadline of the whole call came first.
            ToolRejected: the tool found the call itself wrong.
            ToolFailed: the tool answered with another error.
            ToolError: its answer was lost, or it could not be reached.
        """
        remaining_s = deadline.timeout_s()
        bounds = [bound for bound in (limit_s, remaining_s) if bound is not None]
        scope = self._clock.timeout(min(bounds) if bounds else None)
        asked = False
        try:
            async with scope, self._bulkheads.place(method):
                asked = True
                return await self._post(address, method, params, request_id)
        except TimeoutError:
            if not scope.expired():
                raise ToolError(f"the tool's connection timed out on {method!r}") from None
            if not asked:
                raise ToolBusy(f"{method!r} is under way as often as it may be; it was not asked") from None
            if limit_s is None or deadline.remaining() <= 0:
                raise DeadlineExceeded("the deadline of the call passed in the tool phase") from None
            raise ToolDeadline(
                f"the tool did not answer {method!r} within {limit_s:g} s; it may have acted"
            ) from None

    async def _post(self, address: str, method: str, params: dict[str, Any], request_id: str) -> Any:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        try:
            async with self._session.post(f"http://{address}{TOOL_PATH}", json=message) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ToolError(f"the tool's answer to {method!r} was lost; it may have acted") from error
        try:
            answer = json.loads(body)
            if b"\\u" in body:  # half of a surrogate pair is no character: it could not be sent on or kept
                answer = json.loads(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace"))
            failure = answer.get("error")
            if failure is None and response.status == 200:
                return answer["result"]
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise ToolError(f"the tool answered {response.status} without a JSON-RPC result") from error
        if not isinstance(failure, dict):
            raise ToolError(f"the tool refused {method!r}: {failure or response.status}")
        kind = ToolRejected if failure.get("code") in _WRONG_CALL else ToolFailed
        raise kind(f"the tool refused {method!r}: {failure.get('message') or response.status}")
