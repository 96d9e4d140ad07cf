"""What is known of a tool call with an effect, on disk before the tool is asked and again when it has answered.

A gateway that dies in between leaves ``asked``: whoever takes the request up knows then that the tool may have acted,
and does not ask it again before it has found out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, select, update

from cluster.gateway.store.portable import insert_if_absent, store_now
from cluster.gateway.store.store import Store
from cluster.gateway.store.tables import TOOL_STEPS
from policies.digest import canonical, sha256
from policies.idempotency import ClaimLost

Guard = Callable[[Connection], bool]
"""Tells, inside the transaction, whether the caller still holds the claim or the job for which the tool is asked."""


class StepState(StrEnum):
    """What is known."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"
    """The tool said no, or was not reached by the request at all: nothing was done."""
    UNKNOWN = "unknown"
    """It may have acted, and nobody will ever tell."""


class StepReused(ValueError):
    """The step was begun before with another call."""


@dataclass(frozen=True, slots=True)
class StepKey:
    """A step of a request. ``tool_key`` is the idempotency key that the tool is given."""

    scope: str
    step: str
    tool_key: str
    call_digest: str

    @classmethod
    def of(cls, scope: str, step: str, method: str, params: dict[str, Any]) -> StepKey:
        """Return the key of a step; ``scope`` is that of the claim."""
        call = canonical([method, params])
        return cls(scope, step, f"brownout-{sha256(f'{scope}/{step}')[:48]}", sha256(call))


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier try has left."""

    state: StepState
    result: Any = None


class Steps:
    """The steps of all requests. ``keep_s`` is at least as long as claims are kept."""

    def __init__(self, store: Store, *, keep_s: float = 86_400.0) -> None:
        self._store = store
        self._keep_s = keep_s

    async def begin(self, key: StepKey, guard: Guard, *, request_id: str) -> Before | None:
        """Put on disk that the tool is about to be asked; return None then, else what an earlier try has left.

        Raises:
            ClaimLost: the request is somebody else's by now.
            StepReused: an earlier try was for another call.
            StoreUnavailable: the tool must not be asked.
        """

        def work(connection: Connection) -> Before | None:
            if not guard(connection):
                raise ClaimLost("the claim on the key was lost before the tool was asked")
            now = store_now(connection)
            fresh = {
                "tool_key": key.tool_key,
                "call_digest": key.call_digest,
                "state": StepState.ASKED.value,
                "request_id": request_id,
                "asked_at": now,
                "expires_at": now + self._keep_s,
                "result": None,
            }
            if insert_if_absent(connection, TOOL_STEPS, {"scope": key.scope, "step": key.step, **fresh}):
                return None
            row = connection.execute(select(TOOL_STEPS).where(*_is(key))).one()
            if row.state == StepState.REFUSED.value:
                connection.execute(update(TOOL_STEPS).where(*_is(key)).values(**fresh))
                return None
            if row.call_digest != key.call_digest:
                raise StepReused(f"step {key.step} was begun with another call")
            result = None if row.result is None else json.loads(row.result)
            return Before(StepState(row.state), result)

        return await self._store.write(work)

    async def end(self, key: StepKey, state: StepState, result: Any = None) -> None:
        """Record what has become of it. Needs no guard: what the tool did is true for whoever asked.

        Raises:
            StoreUnavailable: it stays ``asked``, or nobody can tell.
        """
        told = json.dumps(result, ensure_ascii=False) if state is StepState.DONE else None
        open_ = TOOL_STEPS.c.state.in_((StepState.ASKED.value, StepState.UNKNOWN.value))
        statement = update(TOOL_STEPS).where(*_is(key), open_).values(state=state.value, result=told)
        await self._store.write(lambda connection: connection.execute(statement).rowcount)


def _is(key: StepKey) -> tuple[Any, ...]:
    return TOOL_STEPS.c.scope == key.scope, TOOL_STEPS.c.step == key.step
