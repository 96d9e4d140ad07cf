"""Keeps an answer in one form and gives it in either: as a stream of events, or whole.

What is kept is the whole answer, as JSON. A stream of it has the text in one event: its tokens are there all at once,
and nobody gains from being told otherwise. ``id`` is new each time, because it names one answer to one caller;
``created`` stays, because it says when the text was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cluster.gateway.assemble import whole_answer
from cluster.gateway.generation import Api
from cluster.gateway.sse import DONE

Json = dict[str, Any]

_PREFIX: Final[dict[Api, str]] = {"chat": "chatcmpl-", "completions": "cmpl-"}
_NOTE: Final = "brownout"
"""The extension field that tells how one call went; it is not part of the answer."""
_WHOLE_FINISHES: Final = ("stop", "length")


def kept_form(api: Api, sent: bytes, usage: Mapping[str, Any]) -> bytes | None:
    """Return what to keep of an answer that went out as ``sent``, a stream or whole; None if it is not whole.

    ``usage`` is the replica's own account, which a stream does not always tell.
    """
    try:
        streamed = sent.startswith(b"data:")
        answer = whole_answer(api, _chunks_sent(sent), dict(usage)) if streamed else json.loads(sent)
        choices = answer["choices"]
        if len(choices) != 1 or choices[0]["finish_reason"] not in _WHOLE_FINISHES or not answer.get("usage"):
            return None
        if not isinstance(_text(api, choices[0]), str):
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    answer.pop(_NOTE, None)
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def chunks_of(api: Api, kept: bytes, request_id: str) -> tuple[list[Json], Json]:
    """Return the chunks of a stream that gives a kept answer, without the one with the usage; and the usage.

    Raises:
        ValueError: it is none.
    """
    answer = json.loads(kept)
    try:
        choice, usage = dict(answer["choices"][0]), answer["usage"]
        text = _text(api, choice)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("what was kept is no answer") from error
    head = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    head["id"] = _PREFIX[api] + request_id
    head["object"] = "chat.completion.chunk" if api == "chat" else "text_completion"
    choice.pop("message", None)
    choice.pop("text", None)
    open_choice = {"index": 0, "logprobs": None, "finish_reason": None}
    if api == "chat":
        pieces = [
            {**open_choice, "delta": {"role": "assistant", "content": ""}},
            {**open_choice, "delta": {"content": text}},
            {**choice, "index": 0, "delta": {}},
        ]
    else:
        pieces = [{**open_choice, "text": text}, {**choice, "index": 0, "text": ""}]
    return [{**head, "choices": [piece]} for piece in pieces], usage


def events_of(chunks: Iterable[Json], usage: Json, *, want_usage: bool, note: Mapping[str, Any]) -> bytes:
    """Return a stream of the chunks, to its proper end; the last event has the ``note``, where there is one."""
    told = list(chunks)
    if want_usage:
        told.append({**told[-1], "choices": [], "usage": usage})
    if note:
        told[-1] = {**told[-1], _NOTE: dict(note)}
    return b"".join(map(_event, told)) + DONE


def _event(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _chunks_sent(sent: bytes) -> list[Json]:
    """Return the chunks of a stream that went out.

    Raises:
        ValueError: it had no proper end.
    """
    *events, last, rest = sent.split(b"\n\n")
    if rest or last != DONE.strip():
        raise ValueError("the stream has not ended")
    return [json.loads(event[5:]) for event in events if event.startswith(b"data:")]


def _text(api: Api, choice: Mapping[str, Any]) -> Any:
    return choice["message"]["content"] if api == "chat" else choice["text"]
