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
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from policies.clock import Deadline, SystemClock
from policies.fleet import Replica
from policies.priority import Priority
from policies.progress import Listener, Progress
from policies.work import Work

if TYPE_CHECKING:
    from policies.ladder import ClassRungs

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CLOCK = SystemClock()
FULL: Final = "full"
"""The rung of a call of which nothing was taken away."""


@dataclass(slots=True)
class Delivery:
    """What has become of a call so far; the one thing that all copies of a call share.

    ``started`` says that part of the answer has reached the client: after that, a retry would repeat output,
    and only a resume may go on. ``attempts`` and ``replica`` are the latest attempt's number and replica name,
    ``resumes`` how often the stream was continued, ``rung`` where on the ladder the call is answered,
    ``wasted_tokens`` what was generated or prefilled for it and had to be done again, ``output_tokens`` what
    all its attempts that have ended generated, and ``waited_s`` how long it has waited for permits in all.
    """

    started: bool = False
    attempts: int = 0
    replica: str = ""
    resumes: int = 0
    rung: str = FULL
    wasted_tokens: int = 0
    output_tokens: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. ``avoid`` holds the replicas that this call has already failed on, the latest last."""

    number: int = 1
    avoid: tuple[Replica, ...] = ()
    replica: Replica | None = None
    progress: Progress = field(default_factory=lambda: Progress(_CLOCK))
    listener: Listener | None = None
    """Told of this attempt's progress too, after the accounts; what it raises ends the attempt."""


class Resumable(Protocol):
    """Knows how to go on with an answer that was cut; made by whoever reads the answer.

    :class:`policies.resume.Transcript` is the account of tokens that most implementations need.
    """

    @property
    def refusal(self) -> str | None:
        """Return why the rest could differ from what was lost; None when it is proven that it cannot."""
        ...

    @property
    def tokens(self) -> int:
        """Return how many tokens of output have been received, by all attempts together."""
        ...

    @property
    def complete(self) -> bool:
        """Tell whether every token is there, so that only the proper end of the answer was lost."""
        ...

    def continued(self, call: Call) -> Call:
        """Return the call for the rest: its work, and a payload that starts from the tokens already there."""
        ...

    def forget(self) -> None:
        """Forget every token: the answer starts again from its beginning."""
        ...

    async def end(self, call: Call) -> Any:
        """Give a complete answer its end, and return what the handler would have returned."""
        ...


class Degradable(Protocol):
    """Knows how to make less of a call; made by whoever knows what the payload means."""

    def at(self, call: Call, rung: str) -> Call | None:
        """Return the call with what that rung takes away; None when the rung changes nothing for it.

        The call that is given has been through the rungs above it, so that each rung includes those.
        """
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """What a client wants, and under which conditions.

    ``idempotent`` says that doing it twice has no effect beyond doing it once, ``tools`` that its answer may
    make somebody act; ``payload`` is opaque to the policies. ``tenant`` is whose share it takes, ``service_class``
    names the kind of work that it is (it decides how far down the ladder the call may go, where ``rungs`` does not
    say it). ``caller`` is who asks, opaque to the policies too: it is for whoever says who is entitled to what.
    """

    request_id: str
    deadline: Deadline = field(default_factory=lambda: Deadline.never(_CLOCK))
    work: Work = field(default_factory=Work)
    idempotent: bool = True
    payload: Any = None
    delivery: Delivery = field(default_factory=Delivery)
    attempt: Attempt | None = None
    priority: Priority = Priority.CRITICAL
    tenant: str = ""
    service_class: str = ""
    resumable: Resumable | None = None
    degradable: Degradable | None = None
    tools: bool = False
    caller: Any = None
    rungs: ClassRungs | None = None

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
