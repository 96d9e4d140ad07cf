"""Puts a whole answer together from the chunks of a stream, for clients that asked for no stream.

The gateway streams from the replica always, because only a stream that is closed frees the engine; the client
must not notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

_ONCE = ("role", "id", "type", "name", "index", "stop_reason", "finish_reason")
"""Fields of a choice, message or tool call that are given once and not in pieces."""


def whole_answer(api: str, chunks: Iterable[Mapping[str, Any]], usage: Json) -> Json:
    """Return the answer that the chunks add up to; ``api`` is ``chat`` or ``completions``."""
    answer: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for key, value in chunk.items():
            if key == "choices":
                for piece in value:
                    _add_choice(choices.setdefault(piece.get("index", 0), {}), piece)
            elif value is not None:
                answer[key] = value
    answer["object"] = "chat.completion" if api == "chat" else "text_completion"
    finish = _finish_chat if api == "chat" else _finish_text
    answer["choices"] = [finish(index, choices[index]) for index in sorted(choices)]
    answer["usage"] = usage
    return answer


def _add_choice(choice: Json, piece: Mapping[str, Any]) -> None:
    for key, value in piece.items():
        if key == "delta":
            _merge(choice.setdefault("message", {}), value or {})
        else:
            _merge(choice, {key: value})


def _merge(into: Json, piece: Mapping[str, Any]) -> None:
    """Add a piece: text is appended, lists are extended (by ``index`` where they have one), the rest is set."""
    for key, value in piece.items():
        if value is None:
            into.setdefault(key, None)
        elif into.get(key) is None:
            into[key] = _fresh(value)
        elif key in _ONCE or isinstance(value, bool | int | float):
            into[key] = value
        elif isinstance(value, str):
            into[key] += value
        elif isinstance(value, dict):
            _merge(into[key], value)
        else:
            _extend(into[key], value)


def _fresh(value: Any) -> Any:
    """Return a copy that may be added to."""
    if isinstance(value, dict):
        copy: Json = {}
        _merge(copy, value)
        return copy
    if isinstance(value, list):
        items: list[Any] = []
        _extend(items, value)
        return items
    return value


def _extend(items: list[Any], pieces: list[Any]) -> None:
    for piece in pieces:
        if isinstance(piece, dict) and isinstance(piece.get("index"), int):
            known = next((item for item in items if item.get("index") == piece["index"]), None)
            if known is None:
                items.append(_fresh(piece))
            else:
                _merge(known, piece)
        else:
            items.append(piece)


def _finish_chat(index: int, choice: Json) -> Json:
    message = choice.pop("message", {})
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    calls = message.get("tool_calls")
    if calls:
        message["content"] = message["content"] or None
        for call in calls:
            call.pop("index", None)
    elif "tool_calls" in message:
        del message["tool_calls"]
    return {**choice, "index": index, "message": message, "logprobs": choice.get("logprobs")}


def _finish_text(index: int, choice: Json) -> Json:
    return {**choice, "index": index, "text": choice.get("text") or "", "logprobs": choice.get("logprobs")}
