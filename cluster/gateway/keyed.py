"""One request under its idempotency key: the claim, the copy of its answer, and what is left behind whatever happens.

The answer is recorded before its last part goes out, so that a client never has a whole answer that a retry would not
get again. Who it is and what it may do has been asked by then, for a replay as for the first time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import Connection
from starlette.types import Scope

from cluster import public
from cluster.gateway.claims import Claims, still_held
from cluster.gateway.crash_points import reached
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.exchange import Exchange, only_header
from cluster.gateway.identity import Identity
from cluster.gateway.store.store import StoreUnavailable
from cluster.gateway.tools import Step
from policies.errors import FailedClosed
from policies.idempotency import (
    Claimed,
    ClaimLost,
    InFlight,
    Keyed,
    KeyReused,
    MalformedKey,
    Recorded,
    body_digest,
    check_key,
    may_be_kept,
    scope_of,
)

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of an answer that is kept; a longer one goes out and is computed again for a retry."""
_NOT_REPLAYED: Final = (public.HEADER_REQUEST_ID, public.HEADER_PROFILE)
"""Headers that name the call and not its answer."""
_KIND: Final = "content-type"


class BoundedCopy(bytearray):
    """A copy that lets everything go once it would be too long."""

    over = False

    def __iadd__(self, data: object) -> BoundedCopy:
        assert isinstance(data, bytes | bytearray)
        if self.over or len(self) + len(data) > MOST_BYTES:
            self.over = True
            self.clear()
        else:
            self.extend(data)
        return self


def keyed_of(
    scope: Scope,
    request_id: str,
    identity: Identity,
    raw: bytes,
    steps: Sequence[Step],
    *,
    has_store: bool,
) -> Keyed | None:
    """Return the request with the body ``raw`` as its key names it; None where it has no key and needs none.

    Raises:
        InvalidRequest: the key is malformed or given twice, or is missing where a tool is to act.
    """
    given = only_header(scope, public.HEADER_IDEMPOTENCY_KEY)
    acting = next((step for step in steps if step.method.effect), None)
    if given is None and acting is None:
        return None
    if given is None:
        assert acting is not None
        raise _wrong(
            f"{acting.method.name} acts, so the request needs the header {public.HEADER_IDEMPOTENCY_KEY}: "
            f"a new value, as a UUID, for each new request, and the same one for its retries",
            "idempotency_key_missing",
        )
    if not has_store:
        raise _wrong("this gateway runs without a store and can hold no key", "idempotency_unsupported")
    try:
        key = check_key(given)
    except MalformedKey as error:
        raise _wrong(f"{public.HEADER_IDEMPOTENCY_KEY}: {error}", "idempotency_key_malformed") from None
    return Keyed(
        scope_of(identity.tenant, identity.principal, scope["method"], scope["path"], key),
        body_digest(raw),
        identity.tenant,
        identity.principal,
        request_id,
    )


class UnderKey:
    """A request that holds its claim."""

    def __init__(self, claims: Claims, claim: Claimed, exchange: Exchange) -> None:
        self._claims = claims
        self._claim = claim
        self._exchange = exchange
        self._ended = False
        self.acted = False
        """Whether a tool may have acted under this claim."""
        self.keeps_error = False
        """Whether an error is this request's result too: nobody can ever say more."""
        exchange.copy = BoundedCopy()
        exchange.before_end = self._record

    @property
    def scope(self) -> str:
        """Return the digest from which the keys of the tool calls are derived."""
        return self._claim.scope

    @property
    def again(self) -> bool:
        """Tell whether an earlier try of the request may have done a part of it."""
        return self._claim.again

    def guard(self, connection: Connection) -> bool:
        """Tell, in a transaction, whether the claim is still held; it cannot be lost before that has ended."""
        return still_held(connection, self._claim)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A context that ends the work when the claim is lost.

        Raises:
            FailedClosed: it was.
        """
        try:
            async with self._claims.working(self._claim):
                yield
        except ClaimLost as error:
            raise FailedClosed(str(error), what="idempotency") from error

    def settle(self) -> None:
        """Give the claim back if the request has ended without a result. Does not wait."""
        if not self._ended:
            self._ended = True
            self._claims.release_soon(self._claim, acted=self.acted)

    async def _record(self) -> None:
        exchange, copy = self._exchange, self._exchange.copy
        exchange.before_end = None  # what is sent if this fails is not the answer
        assert isinstance(copy, BoundedCopy)
        kept = not exchange.cut and (may_be_kept(exchange.status) or self.keeps_error)
        if not kept or copy.over or self._ended:
            return
        told = exchange.sent if exchange.started else exchange.headers
        headers = {name: value for name, value in told.items() if name not in _NOT_REPLAYED}
        recorded = Recorded(exchange.status, {**headers, _KIND: exchange.kind}, bytes(copy))
        reached("before_record")
        try:
            stands = await self._claims.finish(self._claim, recorded)
        except StoreUnavailable as error:
            if exchange.status >= 400:
                return  # nothing was answered that a retry could contradict
            raise FailedClosed(
                "the answer could not be recorded under its key", what="idempotency"
            ) from error
        self._ended = True
        if not stands and exchange.status < 400:
            raise FailedClosed("the claim on the key was lost before the end", what="idempotency")
        reached("after_record")


async def claim_key(claims: Claims, keyed: Keyed, exchange: Exchange) -> UnderKey | Recorded:
    """Return the request under its key, or the answer that it has got before.

    Raises:
        InvalidRequest: somebody works on it (409), or the key belongs to another request (422).
        FailedClosed: the store cannot tell.
    """
    reached("before_claim")
    try:
        outcome = await claims.claim(keyed)
    except StoreUnavailable as error:
        raise FailedClosed("the store cannot tell whether the key was used", what="idempotency") from error
    if isinstance(outcome, Claimed):
        reached("after_claim")
        return UnderKey(claims, outcome, exchange)
    if isinstance(outcome, KeyReused):
        raise _wrong(
            f"{public.HEADER_IDEMPOTENCY_KEY} was used before for another request; take a new one",
            "idempotency_key_reused",
            status=422,
        )
    if isinstance(outcome, InFlight):
        after_s = outcome.retry_after_s
        raise _wrong(
            "a request with this key is under way; its answer will be given again",
            "idempotency_in_flight",
            status=409,
            headers={
                "retry-after": str(max(1, math.ceil(after_s))),
                "retry-after-ms": str(math.ceil(after_s * 1000)),
                public.HEADER_SHOULD_RETRY: "true",
            },
        )
    return outcome.recorded


async def replay(exchange: Exchange, recorded: Recorded) -> None:
    """Send an answer again as it went out."""
    headers = dict(recorded.headers)
    kind = headers.pop(_KIND, "application/json")
    exchange.headers.update(headers)
    exchange.headers[public.HEADER_REPLAYED] = "true"
    await exchange.json(recorded.status, recorded.body, kind)


def _wrong(
    message: str, code: str, *, status: int = 400, headers: dict[str, str] | None = None
) -> InvalidRequest:
    return InvalidRequest(
        message, status=status, param=public.HEADER_IDEMPOTENCY_KEY, code=code, headers=headers
    )
