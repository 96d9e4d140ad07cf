"""What the audit records look like: what is in them, how they are written down, and what a digest is over.

Nothing that a caller wrote stands in them as it was written, but for names: bodies and prompts are hashes and sizes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

HEAD: Final = "head"
"""First record of a chain: which process began it; or what pruning has left of what stood before."""
OPEN: Final = "open"
CLOSE: Final = "close"
REFUSALS: Final = "refusals"
"""A sum of requests without a valid key that were refused, where there were too many to record one by one."""

FORMAT: Final = 1
NOTHING_BEFORE: Final = "0" * 64
"""``previous`` of the first record of a chain."""
LONGEST_NAME: Final = 128
"""Characters of a name that came from outside (a model, a path, a method) that are kept."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of a request before anything is done for it.

    Args:
        body_digest: SHA-256 of the body as it arrived, hexadecimal.
        body_bytes: size of the body.
        prompt_chars: characters of the prompt, where they were counted.
        tool: method of the tool that the request asks for; empty where it asks for none.
        decision: ``allowed``, or the word for why not.
    """

    request_id: str
    tenant: str = ""
    principal: str = ""
    key_id: str = ""
    method: str = ""
    path: str = ""
    model: str = ""
    service_class: str = ""
    priority: str = ""
    body_digest: str = ""
    body_bytes: int | None = None
    prompt_chars: int | None = None
    tool: str = ""
    decision: str = "allowed"


@dataclass(frozen=True, slots=True)
class Closing:
    """How a request ended.

    Args:
        status: of the HTTP answer; None where none was begun.
        tools: of each tool call its ``step``, ``method``, ``state`` and ``effect``, and nothing that it was given.
        reason: a word, never the text of an error: that may hold a caller's words.
        seconds: from its arrival to its end.
    """

    outcome: str
    status: int | None = None
    rung: str = ""
    attempts: int = 0
    replica: str = ""
    tools: Sequence[Mapping[str, object]] = ()
    reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it stands in the store; ``body`` is canonical JSON."""

    chain: str
    seq: int
    previous: str
    digest: str
    kind: str
    request_id: str
    body: str

    def row(self) -> dict[str, Any]:
        """Return the columns."""
        return {name: getattr(self, name) for name in COLUMNS}


COLUMNS: Final = tuple(field.name for field in fields(Record))


def canonical(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(chain: str, seq: int, previous: str, kind: str, request_id: str, body: str) -> str:
    """Return the SHA-256, in hexadecimal, over all of a record but the digest itself."""
    return hashlib.sha256(canonical([chain, seq, previous, kind, request_id, body]).encode()).hexdigest()


def seal(chain: str, seq: int, previous: str, kind: str, request_id: str, body: dict[str, Any]) -> Record:
    """Return the record that follows ``previous``, the digest of the one before it."""
    text = canonical(body)
    return Record(
        chain, seq, previous, digest_of(chain, seq, previous, kind, request_id, text), kind, request_id, text
    )


def opening_body(opening: Opening, at: float) -> dict[str, Any]:
    """Return the body of an ``open`` record; ``at`` is in seconds since the epoch."""
    return {"at": round(at, 6), **_said(opening, without=("request_id",))}


def closing_body(closing: Closing, at: float) -> dict[str, Any]:
    """Return the body of a ``close`` record, but for the place of the record that it closes."""
    body = {"at": round(at, 6), **_said(closing, without=("tools", "seconds"))}
    if closing.seconds is not None:
        body["seconds"] = round(closing.seconds, 6)
    if closing.tools:
        body["tools"] = [dict(step) for step in closing.tools]
    return body


def _said(value: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields that say something; names are cut to what a name may be long."""
    said: dict[str, Any] = {}
    for field in fields(value):
        given = getattr(value, field.name)
        if field.name in without or given is None or given == "":
            continue
        said[field.name] = given[:LONGEST_NAME] if isinstance(given, str) else given
    return said


def body_of(record: Record) -> dict[str, Any]:
    """Return the body; empty where it is not what a body must be."""
    try:
        body = json.loads(record.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def time_of(record: Record) -> float:
    """Return when a record was written, in seconds since the epoch; 0 where it does not say."""
    at = body_of(record).get("at")
    return float(at) if isinstance(at, int | float) else 0.0
