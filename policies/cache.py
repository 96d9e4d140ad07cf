"""The permitted-answer cache: gives an answer again to who may see it, while it is fresh, and never to anybody else.

A wrong hit is worse than no cache. So the key is a digest of everything that the answer depends on and of who may see
it; each record carries that material itself and is compared with what was asked before it is used, so that neither two
keys that collide nor a row that was altered can give one caller what belongs to another; and the right to see it is
asked again at each read. What cannot be verified is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final

from policies.answer_store import AnswerStore, AnswersUnavailable, Kept
from policies.clock import Clock, SystemClock
from policies.digest import canonical, sha256
from policies.events import EventSink, NullSink, WrongHitPrevented
from policies.flights import Flights

FRESH: Final = "fresh"
STALE: Final = "stale"
MISS: Final = "miss"
_SKEW_S: Final = 5.0
"""By how much a record may seem to come from the future: clocks are compared over a network."""


@dataclass(frozen=True)
class Terms:
    """All that an answer depends on, and who may see it.

    ``entitlement`` stands for what the caller may do (callers of one tenant who may do different things do not share),
    ``request`` is the canonical text of the request without what cannot change the answer.
    """

    tenant: str
    model: str
    model_revision: str
    policy_revision: str
    entitlement: str
    request: str

    @cached_property
    def described(self) -> str:
        """Return the text that the key is a digest of; different terms have different texts."""
        return canonical(asdict(self))


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How long an answer is good, in seconds since it was given, and what a wrong one is taken to cost.

    ``fresh_s`` bounds hits, ``stale_s`` what is given when nothing better can be had. ``wait_s`` bounds the wait for
    somebody else's answer to the same question. A wrong answer costs ``wrong_cost_s`` replica-seconds; at most
    ``wrong_share`` of the verified hits are taken to be wrong, and ``stale_wrong_share`` of the stale ones.
    """

    fresh_s: float = 60.0
    stale_s: float = 600.0
    wait_s: float = 10.0
    most_bytes: int = 256 * 1024
    """Of one answer; a longer one is not kept."""
    wrong_cost_s: float = 60.0
    wrong_share: float = 1e-4
    stale_wrong_share: float = 1e-2

    def __post_init__(self) -> None:
        if not 0 < self.fresh_s <= self.stale_s:
            raise ValueError(f"fresh_s={self.fresh_s} must be over 0 and at most stale_s={self.stale_s}")
        if not (self.wait_s >= 0 and self.most_bytes >= 0 and self.wrong_cost_s >= 0):
            raise ValueError(f"{self}: wait_s, most_bytes and wrong_cost_s must be at least 0")
        for name in ("wrong_share", "stale_wrong_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: a share lies between 0 and 1")

    def expected_wrong_s(self, state: str) -> float:
        """Return what an answer that is given in this state costs on average for being wrong, in replica-seconds."""
        share = {FRESH: self.wrong_share, STALE: self.stale_wrong_share}.get(state, 0.0)
        return share * self.wrong_cost_s


@dataclass(frozen=True, slots=True)
class Found:
    """What a look into the cache has given: ``fresh``, ``stale`` or ``miss``, and the answer's age in seconds."""

    state: str = MISS
    kept: Kept | None = None
    age_s: float = 0.0
    lost: bool = False
    """The store could not be asked."""


def seal(kept: Kept) -> str:
    """Return the digest over everything that a record says."""
    head = canonical([getattr(kept, name) for name in _SEALED])
    return hashlib.sha256(head.encode("utf-8", "surrogatepass") + b"\n" + kept.body).hexdigest()


_SEALED: Final = (
    "key",
    "tenant",
    "described",
    "tokens",
    "saved_s",
    "stored_at",
    "fresh_until",
    "stale_until",
)


class Cache:
    """A cache in front of ``store``. ``digest`` makes a key of a text; tests give one that collides."""

    def __init__(
        self,
        store: AnswerStore,
        settings: CacheSettings | None = None,
        *,
        clock: Clock | None = None,
        sink: EventSink | None = None,
        digest: Callable[[str], str] = sha256,
    ) -> None:
        self.settings = settings or CacheSettings()
        self.store = store
        self.flights: Flights[Kept] = Flights(clock or SystemClock())
        self._sink = sink or NullSink()
        self._digest = digest

    def key(self, terms: Terms) -> str:
        """Return the key of an answer."""
        return self._digest(terms.described)

    async def look(self, terms: Terms, entitled: Callable[[], bool], *, request_id: str = "") -> Found:
        """Return what is there for these terms. ``entitled`` tells whether the caller may see it, as of now."""
        key = self.key(terms)
        try:
            kept = await self.store.get(key)
        except AnswersUnavailable:
            return Found(lost=True)
        if kept is None:
            return Found()
        if self.mismatch(terms, kept):
            with contextlib.suppress(AnswersUnavailable):  # it stays then, and is found out again
                await self.store.drop(key)
        return self.judge(terms, kept, entitled, request_id=request_id)

    def judge(self, terms: Terms, kept: Kept, entitled: Callable[[], bool], *, request_id: str = "") -> Found:
        """Return what an answer at hand is worth now: it may have aged, and the caller's right may be gone."""
        why = self.mismatch(terms, kept) or ("" if entitled() else "not_entitled")
        if why:
            self._sink.emit(WrongHitPrevented(request_id, why))
            return Found()
        age_s = max(0.0, self.store.now() - kept.stored_at)
        if age_s < min(self.settings.fresh_s, kept.fresh_until - kept.stored_at):
            return Found(FRESH, kept, age_s)
        if age_s < min(self.settings.stale_s, kept.stale_until - kept.stored_at):
            return Found(STALE, kept, age_s)
        return Found()

    def mismatch(self, terms: Terms, kept: Kept) -> str:
        """Return what about a record is not as it must be, in a word; empty when it is what was asked for."""
        if kept.tenant != terms.tenant:
            return "tenant"
        if kept.described != terms.described:
            return "terms"
        if kept.key != self.key(terms):
            return "key"
        if kept.seal != seal(kept):
            return "seal"
        return "future" if kept.stored_at > self.store.now() + _SKEW_S else ""

    async def keep(self, terms: Terms, body: bytes, *, tokens: int, saved_s: float) -> Kept | None:
        """Keep an answer; return its record, or None when it is too long. A store that is away loses it.

        ``tokens`` is the work that a hit saves, ``saved_s`` the same in replica-seconds.
        """
        if len(body) > self.settings.most_bytes:
            return None
        kept = self.record(terms, body, tokens=tokens, saved_s=saved_s)
        with contextlib.suppress(AnswersUnavailable):  # who waits for it now has it none the less
            await self.store.put(kept)
        return kept

    def record(self, terms: Terms, body: bytes, *, tokens: int, saved_s: float) -> Kept:
        """Return the record of an answer that is given now."""
        now = round(self.store.now(), 3)
        kept = Kept(
            key=self.key(terms),
            tenant=terms.tenant,
            described=terms.described,
            body=body,
            tokens=tokens,
            saved_s=round(saved_s, 6),
            stored_at=now,
            fresh_until=round(now + self.settings.fresh_s, 3),
            stale_until=round(now + self.settings.stale_s, 3),
        )
        return replace(kept, seal=seal(kept))
