"""One effect for each key: whoever sends a request again gets the first one's answer, and nothing is done twice.

A claim has two times of its own. Its *lease* is short and kept alive by whoever works on it, so that a crash blocks
its key for seconds; its *record* lasts a day, so that a client that comes back late still gets its answer. Between
the two stands the *fence*: a number that each new holder gets, and without which nothing is recorded. Who has lost
its lease cannot finish over its successor, and must stop.

(After the IETF draft "The Idempotency-Key HTTP Header Field" and Stripe's API.)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

_KEY: Final = re.compile(r'"?([\x21\x23-\x5b\x5d-\x7e]{1,255})"?')
_SAYS_NOTHING: Final = (401, 403, 408, 409, 425, 429)
"""Answers that are about the moment or the caller, and not about the request."""
_LEAST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 1.0


class MalformedKey(ValueError):
    """The key cannot be used; the text says what one looks like."""


class ClaimLost(Exception):
    """Another holder has the claim, or may have: whatever is done under it must stop."""


class State(StrEnum):
    """What is known of the request behind a key."""

    RUNNING = "running"
    """Somebody works on it, as long as the lease lasts."""
    DONE = "done"
    """It has its answer."""
    UNKNOWN = "unknown"
    """Nobody works on it and it has no answer, but something may have been done for it."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer as it went out, to go out again byte by byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim is yours. ``again`` tells that somebody began before and may have done a part."""

    scope: str
    fence: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """It has been answered."""

    recorded: Recorded


@dataclass(frozen=True, slots=True)
class InFlight:
    """Somebody works on it; ``retry_after_s`` is when to look again."""

    retry_after_s: float


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The key belongs to another request."""


Outcome = Claimed | Replay | InFlight | KeyReused


@dataclass(frozen=True, slots=True)
class Keyed:
    """A request with a key; ``request_id`` names it where somebody looks for who holds a claim."""

    scope: str
    body_digest: str
    tenant: str = ""
    principal: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store keeps for a scope. Times are in seconds by the store's clock."""

    body_digest: str
    state: State
    fence: int
    lease_until: float
    expires_at: float
    recorded: Recorded | None = None


def check_key(given: str) -> str:
    """Return the key of a header: 1 to 255 visible ASCII characters, with or without quotes around them.

    Raises:
        MalformedKey: it is none.
    """
    match = _KEY.fullmatch(given.strip(" \t"))
    if match is None or (given.count('"') not in (0, 2)):
        raise MalformedKey(
            f"the key has {len(given)} characters; it must have 1 to 255 visible ASCII ones, "
            f"without spaces, quotes inside or backslashes, as a UUID has"
        )
    return match[1]


def scope_of(tenant: str, principal: str, method: str, path: str, key: str) -> str:
    """Return the digest under which a claim is kept: one caller's key is never another's."""
    return _digest(json.dumps([tenant, principal, method, path, key]).encode())


def body_digest(body: bytes) -> str:
    """Return what tells one body from another; a body that was written anew is another one."""
    return _digest(body)


def may_be_kept(status: int) -> bool:
    """Tell whether an answer with this status is about the request itself, so that it holds for a retry too."""
    return 200 <= status < 300 or (400 <= status < 500 and status not in _SAYS_NOTHING)


def decide(entry: Entry | None, keyed: Keyed, now: float) -> Outcome:
    """Return what becomes of a request that finds this entry; ``Claimed`` has the fence that its holder gets.

    A fence is the microsecond of its claim, or one more than the last: one that was given away never comes back,
    even when the entry was removed in between.
    """
    fence = int(now * 1e6)
    if entry is None:
        return Claimed(keyed.scope, fence)
    fence = max(fence, entry.fence + 1)
    if entry.expires_at <= now:
        return Claimed(keyed.scope, fence)
    if entry.body_digest != keyed.body_digest:
        return KeyReused()
    if entry.recorded is not None:
        return Replay(entry.recorded)
    left_s = entry.lease_until - now
    if entry.state is State.RUNNING and left_s > 0:
        return InFlight(min(max(left_s, _LEAST_WAIT_S), _LONGEST_WAIT_S))
    return Claimed(keyed.scope, fence, again=True)


class KeyStore(Protocol):
    """Where claims are kept. Each method is one step that happens wholly or not at all."""

    async def claim(self, keyed: Keyed) -> Outcome:
        """Take the key for a request, or find out why not."""
        ...

    async def renew(self, held: Claimed) -> bool:
        """Lengthen the lease; False when the claim is another's by now."""
        ...

    async def finish(self, held: Claimed, recorded: Recorded) -> bool:
        """Record the answer; False when the claim is another's by now, and then nothing is recorded."""
        ...

    async def release(self, held: Claimed, *, acted: bool) -> None:
        """Give the claim back without an answer.

        ``acted``: something may have been done; the key then stays with its request, and who comes next is told so.
        """
        ...


@dataclass(slots=True)
class MemoryKeyStore:
    """Claims of one process, for tests and as the shortest statement of the rules."""

    clock: Callable[[], float]
    lease_s: float = 5.0
    keep_s: float = 86_400.0
    entries: dict[str, Entry] = field(default_factory=dict)

    async def claim(self, keyed: Keyed) -> Outcome:
        now = self.clock()
        outcome = decide(self.entries.get(keyed.scope), keyed, now)
        if isinstance(outcome, Claimed):
            self.entries[keyed.scope] = Entry(
                keyed.body_digest, State.RUNNING, outcome.fence, now + self.lease_s, now + self.keep_s
            )
        return outcome

    async def renew(self, held: Claimed) -> bool:
        entry = self._own(held)
        if entry is not None:
            self.entries[held.scope] = replace(entry, lease_until=self.clock() + self.lease_s)
        return entry is not None

    async def finish(self, held: Claimed, recorded: Recorded) -> bool:
        entry = self._own(held)
        if entry is not None:
            self.entries[held.scope] = replace(entry, state=State.DONE, recorded=recorded)
        return entry is not None

    async def release(self, held: Claimed, *, acted: bool) -> None:
        entry = self._own(held)
        if entry is None:
            return
        if acted or held.again:
            self.entries[held.scope] = replace(entry, state=State.UNKNOWN)
        else:
            del self.entries[held.scope]

    def _own(self, held: Claimed) -> Entry | None:
        entry = self.entries.get(held.scope)
        mine = entry is not None and entry.fence == held.fence and entry.state is State.RUNNING
        return entry if mine else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
