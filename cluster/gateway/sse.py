"""Reads a replica's event stream with as little parsing as its meaning allows.

Almost every event of a stream is one more token, which the gateway only passes on. Such an event is known by
its ``"finish_reason":null``: inside JSON strings quotes are escaped, so those bytes cannot come from generated
text. Everything else (the first token, the finish, usage, errors, ``[DONE]``) is parsed. Where the tokens are kept
so that the answer could be continued, :class:`~cluster.gateway.record.Record` takes such an event apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cluster.gateway.record import Record, without_ids
from policies.call import FULL, Delivery
from policies.errors import AttemptError, CallRejected, ReplicaBusy, ReplicaFailed, ReplicaLost
from policies.progress import Progress

DONE: Final = b"data: [DONE]\n\n"
_NOT_FINISHED: Final = b'"finish_reason":null'
_FINISHED: Final = b'"finish_reason":"'
_FAILED_FINISHES: Final = ("abort", "error")
_LONGEST_EVENT: Final = 16 * 1024 * 1024


def is_plain_token(event: bytes) -> bool:
    """Tell whether one event is a token in mid-stream and nothing else."""
    return _NOT_FINISHED in event and _FINISHED not in event and event.startswith(b"data: {")


class EventStream:
    """Follows one stream to its proper end and says which bytes may go to the client.

    Args:
        choices: how many choices must come to a ``finish_reason``.
        want_usage: whether the client asked for the usage event; else it is kept back.
        collect: where parsed chunks go when the client asked for no stream; nothing is passed on then.
        record: what keeps the tokens, where the answer could be continued elsewhere.
        begun: told when the first token is there, before anybody else sees it.
        note: what the stream's last event tells in the extension field ``brownout``; empty for nothing.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        choices: int = 1,
        want_usage: bool = False,
        collect: list[dict[str, Any]] | None = None,
        record: Record | None = None,
        begun: Callable[[], None] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        self._progress = progress
        self._choices = choices
        self._want_usage = want_usage
        self._collect = collect
        self._record = record
        self._begun = begun
        self._note = note
        self._rest = b""
        self._held = b""
        self._finished: set[int] = set()
        self.first_token_seen = False
        self.done = False
        self.failure: AttemptError | None = None
        """Set when the stream failed just after bytes that may still be passed on."""
        self.usage: dict[str, Any] = {}

    def feed(self, data: bytes) -> bytes:
        """Take what has been received and return what may be passed on.

        Raises:
            AttemptError: the stream holds an error, an aborted generation, or is no event stream.
        """
        passing = self.first_token_seen and self._collect is None
        single = not self._rest and data.endswith(b"\n\n") and data.count(b"\n\n") == 1
        if passing and single and (plain := self._plain(data)) is not None:
            return plain
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > _LONGEST_EVENT:
            raise self._error(ReplicaFailed, "an event of the replica's stream does not end")
        begun = self.first_token_seen
        out: list[bytes] = []
        try:
            for event in events:
                if self.done:
                    break
                out.append(self._take(event + b"\n\n"))
        except AttemptError as error:
            if not any(out) or not (begun or (self._record is not None and self.first_token_seen)):
                raise
            self.failure = error  # what came before it has yet to be passed on
        return b"".join(out) if self._collect is None else b""

    def end(self) -> None:
        """The connection has ended.

        Raises:
            ReplicaLost: the stream has not.
            AttemptError: it had failed before.
        """
        if self.failure is not None:
            raise self.failure
        if not self.done:
            raise self._error(ReplicaLost, "the replica's stream ended before its end")

    def _take(self, event: bytes) -> bytes:
        if self.first_token_seen and self._collect is None and (out := self._plain(event)) is not None:
            return out
        return self._parse(event)

    def _plain(self, event: bytes) -> bytes | None:
        """Return what is passed on of an event that is a token in mid-stream and nothing else; None for others."""
        record = self._record
        if record is None:
            if not is_plain_token(event):
                return None
            self._progress.tokens(1)
            return event
        at = record.find(event)
        if at < 0:
            return None
        end = event.index(b"]", at)
        told = event[at:end]
        ids = [int(told)] if told.isdigit() else [int(one) for one in told.split(b",") if one]
        self._progress.tokens(len(ids))
        record.add(ids, event, at)
        return event if record.shows_ids else b"%bnull%b" % (event[: at - 1], event[end + 1 :])

    def _parse(self, event: bytes) -> bytes:
        payload = _payload(event)
        if payload is None:
            return event if self.first_token_seen else b""  # a comment, which keeps a connection alive
        if payload == b"[DONE]":
            if len(self._finished) < self._choices:
                raise self._error(ReplicaLost, "the replica's stream ended without a finish_reason")
            self.done = True
            return event
        try:
            chunk = json.loads(payload)
            choices = chunk.get("choices") or ()
            if chunk.get("error") is not None:
                raise self._reported(chunk["error"], payload)
            tokens = sum(self._follow(choice) for choice in choices)
            brings = tokens > 0 or any(choice.get("finish_reason") for choice in choices)
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise self._error(
                ReplicaFailed, "the replica's stream holds something else than chunks"
            ) from error
        if not choices and chunk.get("usage"):
            self.usage = chunk["usage"]
            self._keep(chunk)
            if not self._want_usage:
                return b""
            if self._record is not None:
                self._record.usage_told = True
            return _noted(event, self._note)
        if not brings and not self.first_token_seen:
            if self._record is not None:
                self._record.open(chunk)
            self._keep(chunk)
            self._held += self._shown(
                event
            )  # the opening event with the role: nothing has been generated yet
            return b""
        self._progress.tokens(tokens)
        if self._record is not None and choices:
            self._record.note(chunk, event)
        if not self.first_token_seen:
            self.first_token_seen = True
            if self._begun is not None:
                self._begun()
        self._keep(chunk)
        event = self._shown(event)
        if len(self._finished) == self._choices and not self._want_usage:
            event = _noted(event, self._note)
        held, self._held = self._held, b""
        return held + event

    def _shown(self, event: bytes) -> bytes:
        """Return the event with token ids only if the client asked for them."""
        return event if self._record is None or self._record.shows_ids else without_ids(event)

    def _keep(self, chunk: dict[str, Any]) -> None:
        """Collect a chunk for a client that asked for no stream."""
        if self._collect is None:
            return
        if self._record is not None and not self._record.shows_ids:
            for holder in (chunk, *(chunk.get("choices") or ())):
                for name in ("prompt_token_ids", "token_ids"):
                    if name in holder:
                        holder[name] = None
        self._collect.append(chunk)

    def _follow(self, choice: dict[str, Any]) -> int:
        """Note a choice's finish and return its tokens; a chunk that only opens the choice has none."""
        reason = choice.get("finish_reason")
        if reason is not None:
            if reason in _FAILED_FINISHES:
                raise self._error(ReplicaLost, f"the replica ended the generation with {reason!r}")
            self._finished.add(choice.get("index", 0))
        if isinstance(ids := choice.get("token_ids"), list):
            return len(ids)
        delta = choice.get("delta")
        if reason is not None or delta is None or "role" not in delta:
            return 1
        return int(any(value for key, value in delta.items() if key != "role"))

    def _reported(self, error: Any, payload: bytes) -> AttemptError:
        """Return the error that a replica put into its stream; its ``code`` is an HTTP status."""
        said = error if isinstance(error, dict) else {"message": str(error)}
        code, message = said.get("code"), f"the replica reported: {said.get('message')}"
        if isinstance(code, int) and 400 <= code < 500 and code not in (408, 429):
            return CallRejected(message, status=code, body=payload, reached=self._progress.reached)
        kind = ReplicaBusy if code in (429, 503) else ReplicaFailed
        return self._error(kind, message)

    def _error(self, kind: type[AttemptError], message: str) -> AttemptError:
        return kind(message, reached=self._progress.reached)


def _payload(event: bytes) -> bytes | None:
    """Return the data of an event, or None when it has none."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def note_of(delivery: Delivery) -> dict[str, Any]:
    """Return what a stream's last event tells of how the call was answered; empty when it went as asked."""
    note: dict[str, Any] = {}
    if delivery.resumes:
        note["resumes"] = delivery.resumes
    if delivery.rung != FULL:
        note["rung"] = delivery.rung
    return note


def _noted(event: bytes, note: Mapping[str, Any] | None) -> bytes:
    """Return the event with the extension field ``brownout``, which clients that do not know it pass over."""
    if not note or not event.endswith(b"}\n\n"):
        return event
    said = json.dumps(note, ensure_ascii=False, separators=(",", ":")).encode()
    return b'%b,"brownout":%b}\n\n' % (event[:-3], said)
