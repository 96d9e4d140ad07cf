"""Reads a replica's event stream with as little parsing as its meaning allows.

Almost every event of a stream is one more token, which the gateway only passes on. Such an event is known by
its ``"finish_reason":null``: inside JSON strings quotes are escaped, so those bytes cannot come from generated
text. Everything else (the first token, the finish, usage, errors, ``[DONE]``) is parsed.
"""

from __future__ import annotations

import json
from typing import Any, Final

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
    """

    def __init__(
        self,
        progress: Progress,
        *,
        choices: int = 1,
        want_usage: bool = False,
        collect: list[dict[str, Any]] | None = None,
    ) -> None:
        self._progress = progress
        self._choices = choices
        self._want_usage = want_usage
        self._collect = collect
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
        if passing and single and is_plain_token(data):
            self._progress.tokens(1)
            return data
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
            if not begun or not any(out):
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
        if self.first_token_seen and self._collect is None and is_plain_token(event):
            self._progress.tokens(1)
            return event
        return self._parse(event)

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
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise self._error(
                ReplicaFailed, "the replica's stream holds something else than chunks"
            ) from error
        if self._collect is not None:
            self._collect.append(chunk)
        if not choices and chunk.get("usage"):
            self.usage = chunk["usage"]
            return event if self._want_usage else b""
        if not tokens and not self.first_token_seen:
            self._held += event  # the opening event with the role: nothing has been generated yet
            return b""
        self.first_token_seen = True
        self._progress.tokens(tokens)
        held, self._held = self._held, b""
        return held + event

    def _follow(self, choice: dict[str, Any]) -> int:
        """Note a choice's finish and return 1 if the chunk brings output, 0 if it only opens the choice."""
        reason = choice.get("finish_reason")
        if reason is not None:
            if reason in _FAILED_FINISHES:
                raise self._error(ReplicaLost, f"the replica ended the generation with {reason!r}")
            self._finished.add(choice.get("index", 0))
            return 1
        delta = choice.get("delta")
        if delta is None or "role" not in delta:
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
