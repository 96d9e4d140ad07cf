"""What was seen of one answer, and what that makes of the call. Pure: lines and times in, an outcome out.

A stream is complete only with a valid ``finish_reason``, ``[DONE]`` and the right number of tokens. A
load generator that trusts the status line counts cut streams as successes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from chaos.history import Outcome
from chaos.load.prompts import Ask
from cluster.public import (
    HEADER_ATTEMPTS,
    HEADER_CACHE,
    HEADER_REPLICA,
    HEADER_RUNG,
    HEADER_SHOULD_RETRY,
    HEADER_TOOL,
)

FINISHED: Final = ("stop", "length", "tool_calls")
"""The finish reasons of a whole answer; ``abort`` is what an engine says of a generation that it gave up."""
ANSWERED: Final = ("ok", "degraded")
"""Outcomes of calls that were answered at once, if with less than was asked for."""
TOOL_OK: Final = ("ok", "")
"""Values of the tool header that mean that nothing was left out."""
FULL_RUNG: Final = ("full", "", "deferred")
"""Values of the rung header that mean that nothing was taken away; what comes later comes whole."""
ACCEPTED: Final = 202


@dataclass(slots=True)
class Answer:
    """Collects one answer. Times are seconds since the epoch; ``error_type`` is empty while nothing went wrong."""

    status: int = 0
    retry_after: bool = False
    headers_at: float | None = None
    token_at: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""
    done: bool = False
    error_type: str = ""
    error: str = ""
    replica: str = ""
    attempts: int = 0
    tool: str = ""
    rung: str = ""
    cache: str = ""
    should_retry: str = ""
    retry_after_s: float | None = None
    job: str = ""
    """The path of the job that the call became; empty when it became none."""
    job_state: str = ""
    job_reason: str = ""
    accepted_at: float | None = None
    result_at: float | None = None

    @property
    def text_sha(self) -> str:
        """The first 16 hex digits of the SHA-256 of the text; empty when there is none."""
        text = "".join(self.text)
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def fail(self, error_type: str, error: str) -> None:
        """Note what went wrong; the first cause stays."""
        if not self.error_type:
            self.error_type, self.error = error_type, error[:300]

    def heard(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers of the response; ``headers`` finds a name whatever its case."""
        self.status = status
        self.retry_after = "retry-after" in headers
        after = headers.get("retry-after", "")
        self.retry_after_s = float(after) if after.isdigit() else None
        self.should_retry = headers.get(HEADER_SHOULD_RETRY, "")
        self.replica = headers.get(HEADER_REPLICA, "")
        self.tool = headers.get(HEADER_TOOL, "")
        self.rung = headers.get(HEADER_RUNG, "")
        self.cache = headers.get(HEADER_CACHE, "")
        attempts = headers.get(HEADER_ATTEMPTS, "")
        self.attempts = int(attempts) if attempts.isdigit() else 0
        if status == ACCEPTED:
            self.job = urlsplit(headers.get("location", "")).path

    def line(self, raw: bytes, at: float) -> None:
        """Take one line of an event stream that arrived at ``at``."""
        line = raw.strip()
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.fail("malformed", f"a stream event that is not JSON: {data[:100]!r}")
            return
        self._take(event, at)

    def body(self, raw: bytes) -> None:
        """Take the whole body of an answer that is no stream, or of an error."""
        try:
            event = json.loads(raw)
        except ValueError:
            event = None
        if self.status >= 400:
            problem = event.get("error") if isinstance(event, dict) else None
            self._problem(problem, f"http_{self.status}", raw[:200].decode(errors="replace"))
        elif not isinstance(event, dict):
            self.fail("malformed", f"a body that is not a JSON object: {raw[:100]!r}")
        else:
            self._take(event, None)

    def result(self, status: int, raw: bytes) -> None:
        """Take the result of the job that the call became; the call's own status stays."""
        accepted, self.status = self.status, status
        self.body(raw)
        self.status = accepted

    def _problem(self, problem: Any, default_type: str, default_text: str) -> None:
        if isinstance(problem, dict):
            error_type = str(problem.get("type") or default_type)
            self.fail(error_type, str(problem.get("message") or default_text))
        else:
            self.fail(default_type, str(problem or default_text))

    def _take(self, event: Any, at: float | None) -> None:
        if not isinstance(event, dict):
            self.fail("malformed", "a stream event that is not an object")
            return
        if event.get("error"):
            self._problem(event["error"], "error", "an error event")
            return
        try:
            for choice in event.get("choices") or ():
                self._take_choice(choice, at)
            if usage := event.get("usage"):
                self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
                self.output_tokens = int(usage.get("completion_tokens") or 0)
        except (TypeError, AttributeError, ValueError):
            self.fail("malformed", f"an answer of another shape: {str(event)[:100]}")

    def _take_choice(self, choice: Any, at: float | None) -> None:
        part = choice.get("delta") or choice.get("message") or {}
        text = part.get("content") or choice.get("text") or ""
        if text:
            self.text.append(str(text))
            if at is not None:
                self.token_at.append(at)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])

    @property
    def shortened(self) -> bool:
        """Whether the gateway said that it gave less than was asked for, on purpose."""
        return self.rung not in FULL_RUNG

    def _incomplete(self, asked: Ask) -> tuple[str, str] | None:
        if asked.stream and not self.done:
            return "cut", "the stream ended without [DONE]"
        if self.finish_reason not in FINISHED:
            named = repr(self.finish_reason) if self.finish_reason else "none"
            return self.finish_reason or "no_finish_reason", f"finish_reason is {named}"
        if self.output_tokens == 0:
            return "no_usage", "the answer does not say how many tokens it has"
        short = self.finish_reason == "length" and self.output_tokens < asked.max_tokens
        if (short and not self.shortened) or self.output_tokens > asked.max_tokens:
            return "wrong_length", f"{self.output_tokens} tokens, {asked.max_tokens} were asked for"
        if len(self.token_at) > self.output_tokens:
            return "wrong_length", f"{len(self.token_at)} chunks of text, but {self.output_tokens} tokens"
        return None

    def close(self, asked: Ask, late: bool) -> Outcome:
        """Return the outcome of the call, now that nothing more will come; notes why when it failed.

        ``late`` says that the client's deadline cut the answer off.
        """
        if self.job:
            return self._close_job(asked)
        if late:
            self.fail("late", "the client's deadline ran out")
            return "late"
        if not self.error_type and self.status == 200 and (missing := self._incomplete(asked)):
            self.fail(*missing)
        if not self.error_type and self.status != 200:
            self.fail(f"http_{self.status}" if self.status else "connection", "no answer")
        if self.error_type:
            refused = self.status == 429 or (self.status == 503 and self.retry_after)
            return "refused" if refused else "failed"
        without_tool = asked.tool_symbol and self.tool not in TOOL_OK
        return "degraded" if without_tool or self.shortened else "ok"

    def _close_job(self, asked: Ask) -> Outcome:
        if self.result_at is not None:
            if not self.error_type and (missing := self._incomplete(replace(asked, stream=False))):
                self.fail(*missing)
            return "failed" if self.error_type else "deferred_done"
        if self.job_state in ("failed", "cancelled", "expired", "missing"):
            self.fail(f"job_{self.job_state}", self.job_reason)
            return "failed"
        self.fail("deferred", "accepted, and no result by the client's deadline")
        return "deferred"
