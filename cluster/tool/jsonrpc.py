"""JSON-RPC 2.0 (https://www.jsonrpc.org/specification): messages in, messages out, no transport.

Written here because the protocol is a page long and its corners are the point of the tool's tests: batches,
notifications, and which error has which code.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

Method = Callable[[Any], Awaitable[Any]]
"""Takes ``params`` as they came (a dict, a list, or None when absent) and returns a JSON value."""


class RpcError(Exception):
    """A method's own error: ``code``, ``message`` and optional ``data`` go to the caller."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


@dataclass(frozen=True, slots=True)
class Request:
    """A valid request object; a notification has no id and gets no answer."""

    method: str
    params: Any
    id: str | int | float | None
    is_notification: bool


def parse_request(message: Any) -> Request:
    """Return the request in one JSON value.

    Raises:
        RpcError: it is not a request object.
    """
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "Invalid Request", "a request is a JSON object")
    if message.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, "Invalid Request", 'the field "jsonrpc" must be "2.0"')
    if not isinstance(message.get("method"), str):
        raise RpcError(INVALID_REQUEST, "Invalid Request", 'the field "method" must be a string')
    if "params" in message and not isinstance(message["params"], dict | list):
        raise RpcError(INVALID_REQUEST, "Invalid Request", 'the field "params" must be an object or an array')
    if not _is_id(message.get("id")):
        raise RpcError(
            INVALID_REQUEST, "Invalid Request", 'the field "id" must be a string, a number or null'
        )
    return Request(message["method"], message.get("params"), message.get("id"), "id" not in message)


async def answer(body: bytes, methods: Mapping[str, Method]) -> Any | None:
    """Run what ``body`` asks for and return the answer as a JSON value; None when nothing is to be answered.

    The calls of a batch run one after the other, in their order, so that their effects have one too.
    """
    try:
        message = json.loads(body)
    except ValueError as error:
        return _error(None, RpcError(PARSE_ERROR, "Parse error", str(error)))
    if not isinstance(message, list):
        return await _answer_one(message, methods)
    if not message:
        return _error(None, RpcError(INVALID_REQUEST, "Invalid Request", "a batch may not be empty"))
    answers = [await _answer_one(one, methods) for one in message]
    return [one for one in answers if one is not None] or None


async def _answer_one(message: Any, methods: Mapping[str, Method]) -> dict[str, Any] | None:
    try:
        request = parse_request(message)
    except RpcError as error:
        found = message.get("id") if isinstance(message, dict) else None
        return _error(found if _is_id(found) else None, error)
    try:
        method = methods.get(request.method)
        if method is None:
            known = ", ".join(sorted(methods))
            raise RpcError(METHOD_NOT_FOUND, "Method not found", f"{request.method!r}; known: {known}")
        result = await method(request.params)
    except RpcError as error:
        return None if request.is_notification else _error(request.id, error)
    return None if request.is_notification else {"jsonrpc": "2.0", "result": result, "id": request.id}


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _error(request_id: Any, error: RpcError) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return {"jsonrpc": "2.0", "error": body, "id": request_id}
