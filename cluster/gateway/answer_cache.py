"""The gateway's answer cache: whose answers may be given again, under which revisions, and one request's use of it.

It stands before the pipeline, where a hit costs no permit, and lends the ladder its rung ``cached``: a call that would
be refused gets an answer that is past its freshness and not yet past use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cluster import public
from cluster.gateway.answers import BackedAnswers, SqlAnswers
from cluster.gateway.cacheable import request_text, why_computed
from cluster.gateway.exchange import Exchange, header
from cluster.gateway.generation import Api
from cluster.gateway.identity import Identity
from cluster.gateway.keyed import BoundedCopy
from cluster.gateway.recall import Earlier, Recall
from cluster.gateway.replay import kept_form
from cluster.gateway.store.store import Store
from cluster.settings import Settings
from policies.answer_store import Kept, MemoryAnswers
from policies.cache import FRESH, STALE, Cache, CacheSettings, Found, Terms
from policies.call import FULL
from policies.digest import canonical, sha256
from policies.errors import AttemptError, CallRefused, CallRejected, FailedClosed, NotResumable
from policies.events import CacheUsed
from policies.flights import Lead
from policies.ladder import CACHED, depth
from policies.work import Work

if TYPE_CHECKING:
    from cluster.gateway.answering import Answering, Wanted
    from cluster.gateway.calls import LiveCall
    from cluster.gateway.service import Gateway

HIT: Final = "hit"
MISSED: Final = "miss"
BYPASS: Final = "bypass"
OUTCOMES: Final = (HIT, STALE, MISSED, BYPASS)
_ORIGIN: Final = "cache_hit"
"""Word for the audit; a stale answer is told by its rung."""
_FORM: Final = 1
"""Of what is kept; another one makes other keys."""
_ASKS_ANEW: Final = ("no-cache", "no-store")


class AnswerCache:
    """What all requests share. :meth:`bind` gives it the gateway; before that it must not be used."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._answers = BackedAnswers(
            SqlAnswers(store, most_bytes=settings.cache_tenant_bytes, limit_s=settings.cache_lookup_s),
            MemoryAnswers(settings.cache_memory_bytes),
        )
        self.settings = CacheSettings(
            fresh_s=settings.cache_fresh_s,
            stale_s=settings.cache_stale_s,
            wait_s=settings.cache_wait_s,
            most_bytes=settings.cache_answer_bytes,
            wrong_cost_s=settings.cache_wrong_cost_s,
        )
        self.model_revision = settings.model_revision
        """Of the model that answers now; what was kept under another one is not found."""
        self.policy_revision = ""
        self.gateway: Gateway
        self.cache: Cache

    def bind(self, gateway: Gateway) -> None:
        """Stand before this gateway's pipeline."""
        self.gateway = gateway
        self.cache = Cache(self._answers, self.settings, clock=gateway.clock, sink=gateway.sink)
        settings = gateway.settings
        decides = [
            _FORM,
            settings.max_model_len,
            settings.samples_by_position,
            dict(gateway.counter.defaults),
        ]
        self.policy_revision = sha256(canonical(decides))[:16]

    async def serve(
        self, api: Api, exchange: Exchange, wanted: Wanted, live: LiveCall, answering: Answering
    ) -> None:
        """Give an answer of before, or have one made and keep it."""
        if not wanted.identity.work_class(wanted.standing.service_class).cacheable:
            await answering.run()
            return
        await CacheUse(self, api, exchange, wanted, live, answering).serve()

    async def flush(self) -> None:
        """Wait until what was kept is written."""
        await self._answers.flush()

    async def aclose(self) -> None:
        """Write what waits to be written."""
        await self._answers.aclose()


@dataclass(slots=True)
class CacheUse:
    """One request's use of the cache."""

    shared: AnswerCache
    api: Api
    exchange: Exchange
    wanted: Wanted
    live: LiveCall
    answering: Answering
    _terms: Terms | None = None
    _given: Kept | None = None
    _lookup_s: float = 0.0
    _lost: bool = False
    _outcome: str = field(default=BYPASS)

    async def serve(self) -> None:
        """See the request to its end."""
        try:
            await self._serve()
        finally:
            self._tell()

    async def _serve(self) -> None:
        gateway, wanted = self.shared.gateway, self.wanted
        anew = (header(self.exchange.scope, "cache-control") or "").lower()
        if any(word in anew for word in _ASKS_ANEW) or why_computed(
            self.api, wanted.request, wanted.body, gateway.counter.defaults
        ):
            self._say(BYPASS)
            await self.answering.run()
            return
        self._terms = terms = self._made_terms()
        wait_s = min(self.shared.settings.wait_s, wanted.deadline.remaining())
        place = await self.shared.cache.flights.join((terms, wanted.standing.priority), wait_s)
        if isinstance(place, Lead):
            with (
                place
            ):  # looked for under the lead: who looked before it might look too early, and lead again
                found = await self._look(terms)
                if found.state != FRESH:
                    await self._lead(place, terms, found)
                    return
                assert found.kept is not None
                place.land(found.kept)
        else:
            found = await self._look(terms) if place is None else self._judge(place)
        if found.state == FRESH:
            self.answering.origin = _ORIGIN
            await self._give(found, HIT, {})
        else:
            await self._compute(terms, found)

    async def _lead(self, place: Lead[Kept], terms: Terms, found: Found) -> None:
        """Compute for all who wait; where that gives nothing for them, or capacity lacks, each is on its own."""
        try:
            kept = await self._compute(terms, found)
        except CallRefused:
            place.disband()
            raise
        if kept is None:
            place.disband()
        else:
            place.land(kept)

    async def _look(self, terms: Terms) -> Found:
        clock = self.shared.gateway.clock
        began_at = clock.now()
        try:
            found = await self.shared.cache.look(terms, self._entitled, request_id=self.live.request_id)
        finally:
            self._lookup_s = clock.now() - began_at
        self._lost = found.lost
        return found

    async def _compute(self, terms: Terms, found: Found) -> Kept | None:
        """Have the answer made; return the record of it, where it may be given again."""
        self._say(MISSED)
        if found.state == STALE and found.kept is not None:
            old = found.kept
            self.answering.earlier = Earlier(self._recall(), lambda: self._stale(old), self.answering)
        if self.exchange.copy is None:
            self.exchange.copy = BoundedCopy()
        try:
            await self.answering.run()
        except AttemptError as error:
            if isinstance(error, CallRejected | NotResumable) or not await self._gone_stale(found):
                raise
            return None
        return await self._keep(terms)

    async def _gone_stale(self, found: Found) -> bool:
        """Give the answer of before in place of an error, where that is allowed; tell whether it was given."""
        if self.exchange.started or found.kept is None or not self._goes_that_low():
            return False
        old = self._judge(found.kept)
        if old.kept is None:
            return False
        if self.answering.call is not None:
            self.answering.call.delivery.rung = CACHED
            self.exchange.headers[public.HEADER_RUNG] = CACHED
        await self._give(old, STALE, {"rung": CACHED})
        return True

    def _goes_that_low(self) -> bool:
        call, ladder = self.answering.call, self.shared.gateway.pipeline.ladder
        return call is not None and ladder is not None and depth(ladder.limits(call).lowest) >= depth(CACHED)

    def _stale(self, kept: Kept) -> Kept | None:
        """Return the answer of before for the ladder, as far as it may be given now."""
        found = self._judge(kept)
        if found.kept is not None:
            self._say(STALE, found)
        return found.kept

    async def _keep(self, terms: Terms) -> Kept | None:
        usage, shared = self.answering.usage, self.shared
        if self.answering.rung != FULL or terms.model_revision != shared.model_revision:
            return None
        body = kept_form(self.api, bytes(self.exchange.copy or b""), usage)
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if body is None or not isinstance(prompt, int) or not isinstance(completion, int):
            return None
        work = Work(prompt, completion)
        saved_s = shared.gateway.rates.service_s(work)
        return await shared.cache.keep(terms, body, tokens=work.tokens, saved_s=saved_s)

    async def _give(self, found: Found, outcome: str, note: dict[str, str]) -> None:
        assert found.kept is not None
        self._say(outcome, found)
        self.live.first_token()
        await self._recall().give(self.exchange, found.kept, note)

    def _judge(self, kept: Kept) -> Found:
        assert self._terms is not None
        return self.shared.cache.judge(self._terms, kept, self._entitled, request_id=self.live.request_id)

    def _say(self, outcome: str, found: Found | None = None) -> None:
        self._outcome = outcome
        self.exchange.headers[public.HEADER_CACHE] = outcome
        if found is not None:
            self._given = found.kept
            self.exchange.headers["age"] = str(int(found.age_s))

    def _tell(self) -> None:
        given = self._given
        state = {HIT: FRESH, STALE: STALE}.get(self._outcome, "")
        self.shared.gateway.sink.emit(
            CacheUsed(
                self.live.request_id,
                self._outcome,
                tenant=self.wanted.identity.tenant,
                owner="" if given is None else given.tenant,
                lookup_s=self._lookup_s,
                saved_s=0.0 if given is None else given.saved_s,
                wrong_s=self.shared.settings.expected_wrong_s(state),
                lost=self._lost,
            )
        )

    def _recall(self) -> Recall:
        request = self.wanted.request
        options = request.stream_options
        wants_usage = options is not None and bool(options.include_usage)
        return Recall(self.api, self.live.request_id, bool(request.stream), wants_usage)

    def _made_terms(self) -> Terms:
        identity, standing = self.wanted.identity, self.wanted.standing
        return Terms(
            tenant=identity.tenant,
            model=self.wanted.request.model,
            model_revision=self.shared.model_revision,
            policy_revision=self.shared.policy_revision,
            entitlement=entitlement_of(identity, standing.service_class),
            request=request_text(self.api, self.wanted.body),
        )

    def _entitled(self) -> bool:
        """Tell whether the caller may see the answer by now: their key, and what it stands for, can have changed."""
        identity, service_class = self.wanted.identity, self.wanted.standing.service_class
        try:
            now = self.shared.gateway.tenants.current(identity)
        except FailedClosed:
            return False
        return (
            now is not None
            and now.tenant == identity.tenant
            and now.may_use(self.wanted.request.model)
            and now.work_class(service_class).cacheable
            and entitlement_of(now, service_class) == entitlement_of(identity, service_class)
        )


def entitlement_of(identity: Identity, service_class: str) -> str:
    """Return what the caller may do, as far as an answer could show it; callers for whom it differs do not share."""
    models, tools = (None if names is None else sorted(names) for names in (identity.models, identity.tools))
    return canonical([sorted(identity.roles), models, tools, service_class])
