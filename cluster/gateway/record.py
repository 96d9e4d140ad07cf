"""What a replica's stream has told of an answer's tokens, kept so that another replica can go on from there.

Nearly all events of a stream differ only in a text, which is a JSON string, and in its token ids. Their shape is
learnt from the first of them; after that an event is taken apart by position, without parsing, and whatever does
not have that shape is parsed.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from policies.resume import Transcript

_IDS: Final = b'"token_ids":['
_NOT_FINISHED: Final = b'"finish_reason":null'
_ALL_IDS: Final = re.compile(rb'"((?:prompt_)?token_ids)": ?\[[0-9, ]*\]')
_NOT_OF_THE_HEAD: Final = ("choices", "usage", "prompt_token_ids", "prompt_text", "system_fingerprint")


def without_ids(event: bytes) -> bytes:
    """Return the event as vLLM sends it to who did not ask for token ids.

    Inside a JSON string every quote is escaped, so generated text cannot look like the fields that are emptied.
    """
    return _ALL_IDS.sub(rb'"\1":null', event)


class Record:
    """One answer with a single choice. ``shows_ids`` says that the client asked for token ids itself."""

    __slots__ = (
        "_before_ids",
        "_before_text",
        "_key",
        "_said",
        "chat",
        "chunks",
        "head",
        "problem",
        "shows_ids",
        "transcript",
        "usage_told",
    )

    def __init__(self, *, chat: bool, shows_ids: bool = False) -> None:
        self.chat = chat
        self.shows_ids = shows_ids
        self.transcript = Transcript(prompt=())
        self.head: dict[str, Any] = {}
        """What every event of the stream has in common: id, object, created, model."""
        self.chunks: list[dict[str, Any]] = []
        """Where the events go of a client that asked for no stream."""
        self.problem = ""
        """Why the record cannot be gone on from; empty while it can."""
        self.usage_told = False
        """Whether the client has got the usage already."""
        self._key = b'"delta":{"content":"' if chat else b'"text":"'
        self._said = bytearray()
        self._before_text = b""
        self._before_ids = b""

    @property
    def text(self) -> str:
        """Return the text of all events so far."""
        said: str = json.loads(b'"' + bytes(self._said) + b'"')
        return said

    def open(self, chunk: dict[str, Any]) -> None:
        """Take what comes before the first token: the opening of a chat names the prompt's ids."""
        if isinstance(ids := chunk.get("prompt_token_ids"), list):
            self.transcript.prompt = ids

    def find(self, event: bytes) -> int:
        """Return where the ids begin in an event that is a token in mid-stream and nothing else; else -1."""
        before = self._before_text
        if not before or not event.startswith(before):
            return -1
        at = event.find(_IDS, len(before))
        return at + len(_IDS) if at > 0 and event.endswith(self._before_ids, len(before), at) else -1

    def add(self, ids: list[int], event: bytes, at: int) -> None:
        """Keep the ids and the text of an event that :meth:`find` has found."""
        self.transcript.output += ids
        self._said += event[len(self._before_text) : at - len(_IDS) - len(self._before_ids)]

    def note(self, chunk: dict[str, Any], event: bytes) -> None:
        """Keep what any other event with a choice has told."""
        self.open(chunk)
        choice = chunk["choices"][0]
        ids, text = choice.get("token_ids"), self._text_of(choice)
        if isinstance(prompt := choice.get("prompt_token_ids"), list):
            self.transcript.prompt = prompt
        if not isinstance(ids, list) or text is None or not self.transcript.prompt:
            self.problem = "the replica does not tell token ids in the way that is known here"
            return
        if not self.head:
            self.head = {key: value for key, value in chunk.items() if key not in _NOT_OF_THE_HEAD}
            self._learn(without_ids(event), event, text)
        self.transcript.output += ids
        self._said += _escaped(text)
        self.transcript.finish_reason = choice.get("finish_reason")

    def _text_of(self, choice: dict[str, Any]) -> str | None:
        """Return the text of a choice; None when it brings something else than text."""
        if not self.chat:
            text = choice.get("text")
            return text if isinstance(text, str) else None
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return None
        text = delta.get("content") or ""
        others = any(delta[key] is not None for key in delta if key not in ("content", "role"))
        return text if isinstance(text, str) and not others else None

    def _learn(self, plain: bytes, event: bytes, text: str) -> None:
        """Learn from the first token what stands before the text and between it and the ids."""
        start = plain.find(self._key) + len(self._key)
        end = plain.find(b'"token_ids":null', start)
        said = _escaped(text)
        if start < len(self._key) or end < 0 or not plain.startswith(said + b'"', start):
            return  # then every event is parsed, which is slower and no less right
        between = plain[start + len(said) : end]
        if _NOT_FINISHED in between and event.startswith(plain[:start]):
            self._before_text, self._before_ids = plain[:start], between


def _escaped(text: str) -> bytes:
    """Return the text as it stands inside the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
