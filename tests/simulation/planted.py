"""Bugs that the product does not have, put into it for one run, to see whether the simulation would find them.

Each is a mistake that retry layers, limiters and breakers have been shipped with elsewhere. They live in the test
suite alone: product classes are patched from outside and restored afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from policies.admission import Admission
from policies.call import Call
from policies.dispatch import Dispatch, _Watch
from policies.early_rejection import EarlyRejection
from policies.errors import AttemptError, CallRefused, DeadlineExceeded
from policies.retry import Retry
from policies.retry_budget import RetryBudget
from policies.stall import StallWatch
from policies.standing import Standings
from policies.timeouts import AttemptTimeouts, DeadlineGuard
from policies.work import Reservation


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug: what is wrong, which invariants may be the first to notice, and how it is put in."""

    what: str
    found_by: tuple[str, ...]
    patches: Callable[[], tuple[AbstractContextManager[Any], ...]]


def _repeats_text() -> tuple[AbstractContextManager[Any], ...]:
    def to_resume(self: Retry, call: Call, error: AttemptError) -> None:
        if not (error.retryable and call.idempotent):
            raise error

    return (patch.object(Retry, "_to_resume", to_resume),)


def _resumes_from_zero() -> tuple[AbstractContextManager[Any], ...]:
    sound = Retry._to_resume

    class Forgetful:
        def __init__(self, resumable: Any) -> None:
            self._resumable = resumable

        def __getattr__(self, name: str) -> Any:
            return getattr(self._resumable, name)

        def continued(self, call: Call) -> Call:
            return call

    def to_resume(self: Retry, call: Call, error: AttemptError) -> Any:
        resumable = sound(self, call, error)
        return None if resumable is None else Forgetful(resumable)

    return (patch.object(Retry, "_to_resume", to_resume),)


def _gives_up() -> tuple[AbstractContextManager[Any], ...]:
    def to_resume(self: Retry, call: Call, error: AttemptError) -> None:
        raise error

    return (patch.object(Retry, "_to_resume", to_resume),)


def _repeats_what_must_not_be() -> tuple[AbstractContextManager[Any], ...]:
    sound = Retry._to_resume

    def to_resume(self: Retry, call: Call, error: AttemptError) -> Any:
        return sound(self, replace(call, idempotent=True), error)

    return (patch.object(Retry, "_to_resume", to_resume),)


def _late_budget() -> tuple[AbstractContextManager[Any], ...]:
    sound = RetryBudget.hold

    class Late:
        def __init__(self, budget: RetryBudget, work: Any) -> None:
            self._budget, self._work = budget, work

        def spend(self) -> None:
            sound(self._budget, self._work)

        def refund(self) -> None:
            pass

    def hold(self: RetryBudget, work: Any) -> Any:
        probe = sound(self, work)
        if probe is None:
            return None
        probe.refund()
        return Late(self, work)

    return (patch.object(RetryBudget, "hold", hold),)


def _budget_in_attempts_only() -> tuple[AbstractContextManager[Any], ...]:
    sound = RetryBudget.hold

    def hold(self: RetryBudget, work: Any) -> Any:
        return sound(self, replace(work, prompt_tokens=0, output_tokens=0))

    return (patch.object(RetryBudget, "hold", hold),)


def _deadline_per_attempt() -> tuple[AbstractContextManager[Any], ...]:
    sound = AttemptTimeouts.__call__

    async def guard(self: DeadlineGuard, call: Call, inner: Any) -> Any:
        return await inner(call)

    async def attempt(self: AttemptTimeouts, call: Call, inner: Any) -> Any:
        within_s = call.payload.plan.within_s
        scope = asyncio.timeout(within_s)
        try:
            async with scope:
                return await sound(self, call, inner)
        except TimeoutError:
            raise DeadlineExceeded("the deadline of the attempt has passed") from None

    return (
        patch.object(DeadlineGuard, "__call__", guard),
        patch.object(AttemptTimeouts, "__call__", attempt),
    )


def _keeps_reservation() -> tuple[AbstractContextManager[Any], ...]:
    def leave(self: Reservation, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.release()

    return (patch.object(Reservation, "__exit__", leave),)


def _two_owners() -> tuple[AbstractContextManager[Any], ...]:
    sound = Dispatch.__call__

    async def twice(self: Dispatch, call: Call, inner: Any) -> Any:
        try:
            return await sound(self, call, inner)
        except AttemptError as error:
            if call.delivery.started or not error.retryable:
                raise
            return await sound(self, call, inner)

    return (patch.object(Dispatch, "__call__", twice),)


def _works_for_the_gone() -> tuple[AbstractContextManager[Any], ...]:
    sound = Dispatch.__call__

    async def stubborn(self: Dispatch, call: Call, inner: Any) -> Any:
        task = asyncio.ensure_future(sound(self, call, inner))
        return await asyncio.shield(task)

    return (patch.object(Dispatch, "__call__", stubborn),)


def _no_floor() -> tuple[AbstractContextManager[Any], ...]:
    return (patch.object(Standings, "_floor", lambda self: 0),)


def _come_back_at_once() -> tuple[AbstractContextManager[Any], ...]:
    sound = EarlyRejection.__call__

    async def mute(self: EarlyRejection, call: Call, inner: Any) -> Any:
        try:
            return await sound(self, call, inner)
        except CallRefused as error:
            error.retry_after_s = 0.0
            raise

    return (patch.object(EarlyRejection, "__call__", mute),)


def _believes_stragglers() -> tuple[AbstractContextManager[Any], ...]:
    sound = _Watch.ended

    def ended(self: _Watch) -> None:
        sound(self)
        self._over = False

    return (patch.object(_Watch, "ended", ended),)


def _out_for_ever() -> tuple[AbstractContextManager[Any], ...]:
    return (patch.object(Standings, "_let_return", lambda self: None),)


def _keeps_the_permit() -> tuple[AbstractContextManager[Any], ...]:
    return (patch.object(Admission, "_abandon", lambda self, waiting: None),)


def _limit_is_advice() -> tuple[AbstractContextManager[Any], ...]:
    return (patch.object(Admission, "_next_of", lambda self, in_turn, now: next(iter(in_turn), None)),)


def _waits_anew() -> tuple[AbstractContextManager[Any], ...]:
    sound = Admission._make_room

    def make_room(self: Admission, call: Call, waiting: Any) -> float:
        call.delivery.waited_s = 0.0
        return sound(self, call, waiting)

    return (patch.object(Admission, "_make_room", make_room),)


def _trusts_health() -> tuple[AbstractContextManager[Any], ...]:
    return (patch.object(StallWatch, "started", lambda self, attempt: None),)


_TEXT: Final = ("text is intact",)
PLANTS: Final[dict[str, Plant]] = {
    "repeats_text": Plant("a retry ignores that part of the answer was delivered", _TEXT, _repeats_text),
    "resumes_from_zero": Plant("a resume asks for the whole answer again", _TEXT, _resumes_from_zero),
    "gives_up": Plant("nothing is ever tried again", ("failures have a reason",), _gives_up),
    "repeats_what_must_not_be": Plant(
        "a retry ignores that a call must not be done twice",
        ("attempts are bounded",),
        _repeats_what_must_not_be,
    ),
    "late_budget": Plant(
        "the budget is looked at before the backoff and taken after it", ("retry budget holds",), _late_budget
    ),
    "budget_in_attempts_only": Plant(
        "the budget counts attempts and no tokens", ("retry budget holds",), _budget_in_attempts_only
    ),
    "deadline_per_attempt": Plant(
        "each attempt gets the caller's whole time again", ("deadlines hold",), _deadline_per_attempt
    ),
    "keeps_reservation": Plant(
        "a cancelled attempt keeps its reservation",
        ("ledger matches what is in flight", "nothing is left over"),
        _keeps_reservation,
    ),
    "two_owners": Plant(
        "a second layer retries below the first", ("events pair up", "attempts are bounded"), _two_owners
    ),
    "works_for_the_gone": Plant(
        "an attempt goes on when its caller has left",
        ("text is intact", "nothing is left over", "no work for those who are gone"),
        _works_for_the_gone,
    ),
    "no_floor": Plant(
        "everybody may be ejected", ("ejection keeps the floor", "rotation keeps its floor"), _no_floor
    ),
    "out_for_ever": Plant(
        "an ejected replica never returns", ("everybody comes back", "service recovers"), _out_for_ever
    ),
    "keeps_the_permit": Plant(
        "a caller who leaves the queue stays in it, and is let in later",
        ("permits match the calls",),
        _keeps_the_permit,
    ),
    "limit_is_advice": Plant(
        "calls are let in beyond the limit", ("permits match the calls",), _limit_is_advice
    ),
    "waits_anew": Plant(
        "each rung of the ladder gives a call the whole wait again", ("waits are bounded",), _waits_anew
    ),
    "trusts_health": Plant(
        "nobody looks whether tokens come", ("frozen replicas leave the rotation",), _trusts_health
    ),
    "come_back_at_once": Plant(
        "a refusal says to come back at once", ("errors tell the truth",), _come_back_at_once
    ),
    "believes_stragglers": Plant(
        "what an attempt sends after its end is counted", ("events pair up",), _believes_stragglers
    ),
}
"""By name, for ``--plant``."""


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run with a bug; with none when the name is None.

    Raises:
        KeyError: there is no plant of that name.
    """
    with ExitStack() as stack:
        for one in () if name is None else PLANTS[name].patches():
            stack.enter_context(one)
        yield
