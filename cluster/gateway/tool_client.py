"""Asks the tool, once, over JSON-RPC 2.0.

Never repeated here: a call whose answer was lost may have had its effect, and only its caller knows what
that means.
"""

from __future__ import annotations

import json
from typing import Any, Final

import aiohttp

from cluster.gateway.schema import ToolCall
from cluster.public import TOOL_PATH
from cluster.tool.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from cluster.tool.methods import KEY_REUSED
from policies.clock import Clock, Deadline
from policies.errors import DeadlineExceeded, ToolDeadline, ToolError, ToolRejected

_WRONG_CALL: Final = (INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, KEY_REUSED)
"""Codes that say that the caller is wrong, and not that the tool is ill."""


class ToolClient:
    """One JSON-RPC endpoint."""

    def __init__(self, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock

    async def ask(
        self, address: str, call: ToolCall, request_id: str, *, limit_s: float | None, deadline: Deadline
    ) -> Any:
        """Return the tool's result.

        Raises:
            ToolDeadline: no answer within ``limit_s``.
            DeadlineExceeded: the deadline of the whole call came first.
            ToolRejected: the tool found the call itself wrong.
            ToolError: the tool answered with another error, or could not be reached.
        """
        remaining_s = deadline.timeout_s()
        bounds = [bound for bound in (limit_s, remaining_s) if bound is not None]
        scope = self._clock.timeout(min(bounds) if bounds else None)
        try:
            async with scope:
                return await self._post(address, call, request_id)
        except TimeoutError:
            if not scope.expired():
                raise ToolError(f"the tool's connection timed out on {call.method!r}") from None
            if limit_s is None or deadline.remaining() <= 0:
                raise DeadlineExceeded("the deadline of the call passed in the tool phase") from None
            raise ToolDeadline(
                f"the tool did not answer {call.method!r} within {limit_s:g} s; it may have acted"
            ) from None

    async def _post(self, address: str, call: ToolCall, request_id: str) -> Any:
        message = {"jsonrpc": "2.0", "id": request_id, "method": call.method, "params": call.params}
        try:
            async with self._session.post(f"http://{address}{TOOL_PATH}", json=message) as response:
                body = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ToolError(f"the tool's answer to {call.method!r} was lost; it may have acted") from error
        try:
            answer = json.loads(body)
            failure = answer.get("error")
            if failure is None and response.status == 200:
                return answer["result"]
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            raise ToolError(f"the tool answered {response.status} without a JSON-RPC result") from error
        said = failure.get("message") if isinstance(failure, dict) else failure
        code = failure.get("code") if isinstance(failure, dict) else None
        kind = ToolRejected if code in _WRONG_CALL else ToolError
        raise kind(f"the tool refused {call.method!r}: {said or response.status}")
