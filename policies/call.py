"""The shape that every policy shares: a call goes in, an answer or an error comes out.

A *call* is what the client wants; an *attempt* is one try of it on one replica. A policy takes a call and the
handler below it; :func:`compose` stacks policies on a handler. The innermost handler is any async callable.

A handler runs for as long as the answer does: one that streams pushes its output to whoever the payload
names and returns when the stream has ended. So a policy that holds something for a call holds it in an
ordinary ``with`` block, sees failures in mid-stream, and costs nothing per token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from policies.clock import Deadline, SystemClock
from policies.fleet import Replica
from policies.progress import Progress
from policies.work import Work

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CLOCK = SystemClock()


@dataclass(slots=True)
class Delivery:
    """What has become of a call so far; the one thing that all copies of a call share.

    ``started`` says that part of the answer has reached the client: after that, a retry would repeat output.
    ``attempts`` and ``replica`` are the latest attempt's number and replica name.
    """

    started: bool = False
    attempts: int = 0
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. ``avoid`` holds the replicas that this call has already failed on, the latest last."""

    number: int = 1
    avoid: tuple[Replica, ...] = ()
    replica: Replica | None = None
    progress: Progress = field(default_factory=lambda: Progress(_CLOCK))


@dataclass(frozen=True, slots=True)
class Call:
    """What a client wants, and under which conditions.

    ``idempotent`` says that doing it twice has no effect beyond doing it once; ``payload`` is opaque to the
    policies.
    """

    request_id: str
    deadline: Deadline = field(default_factory=lambda: Deadline.never(_CLOCK))
    work: Work = field(default_factory=Work)
    idempotent: bool = True
    payload: Any = None
    delivery: Delivery = field(default_factory=Delivery)
    attempt: Attempt | None = None

    def trying(self, attempt: Attempt) -> Call:
        """Return the same call with that attempt."""
        return replace(self, attempt=attempt)

    @property
    def attempt_number(self) -> int:
        """Return the number of the present attempt; 1 before any."""
        return 1 if self.attempt is None else self.attempt.number


class Handler(Protocol[T_co]):
    """Any async callable that answers a call."""

    def __call__(self, call: Call, /) -> Awaitable[T_co]:
        """Answer it.

        Raises:
            PolicyError: it could not be answered.
        """
        ...


class Policy(Protocol):
    """Something that decides whether, when and how often the handler below is asked."""

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call with the help of ``inner``."""
        ...


class PassThrough:
    """The policy that does nothing; the template for a new one."""

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Ask the handler below, once."""
        return await inner(call)


def compose(policies: Sequence[Policy], handler: Handler[T]) -> Handler[T]:
    """Stack the policies on the handler; the first is the outermost."""
    for policy in reversed(policies):
        handler = _bind(policy, handler)
    return handler


def _bind(policy: Policy, inner: Handler[T]) -> Handler[T]:
    def bound(call: Call, /) -> Awaitable[T]:
        return policy(call, inner)

    return bound
