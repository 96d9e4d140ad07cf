"""Clients: they ask at their own time whatever the answers are, read slowly, and leave when they like.

Each knows what it should get (a function of the call alone) and writes down everything that it did get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from policies.call import Call
from policies.clock import Deadline, SystemClock
from policies.work import Work
from tests.simulation.plan import CallPlan
from tests.simulation.replica_model import token_of

Pipeline = Callable[[Call], Awaitable[tuple[int, ...]]]


class Output:
    """What the client has got so far, and what the gateway holds for it."""

    def __init__(self, plan: CallPlan) -> None:
        self._plan = plan
        self.received: list[int] = []
        """Tokens of a stream, as they came."""
        self.partial: list[int] = []
        """Tokens of the attempt that came furthest last, for whoever goes on with it."""
        self.ended = False
        self.after_the_end = 0

    def opened(self, call: Call) -> None:
        """The first token is there: from now on a stream has begun for its client."""
        if self._plan.stream:
            call.delivery.started = True

    async def write(self, token: int) -> None:
        """Take one token; waits while the client does not read."""
        self.after_the_end += self.ended
        self.received.append(token)
        if len(self.received) == self._plan.pause_at:
            await asyncio.sleep(self._plan.pause_s)


@dataclass(frozen=True, slots=True)
class Ask:
    """The payload of a call: the answer from ``start`` on, of ``limit`` tokens in all."""

    plan: CallPlan
    output: Output
    limit: int
    start: int = 0
    prefix: tuple[int, ...] = ()
    """The tokens before ``start``."""


class Continuation:
    """Goes on after the last token that was passed on."""

    def __init__(self, output: Output, max_tokens: int, *, proven: bool) -> None:
        self._output = output
        self._max_tokens = max_tokens
        self.refusal = None if proven else "sampled without a seed"

    @property
    def tokens(self) -> int:
        """Return how many tokens have come."""
        return len(self._output.partial)

    @property
    def complete(self) -> bool:
        """Tell whether as many have come as were asked for; an earlier end is known to the engine only."""
        return self.tokens >= self._max_tokens

    def continued(self, call: Call) -> Call:
        """Return the call for the rest."""
        ask = call.payload
        assert isinstance(ask, Ask)
        prefix = tuple(self._output.partial)
        rest = replace(ask, start=len(prefix), prefix=prefix)
        output_tokens = max(1, call.work.output_tokens - len(prefix))
        work = Work(call.work.prompt_tokens + len(prefix), output_tokens)
        return replace(call, payload=rest, work=work)

    def forget(self) -> None:
        """Start again with nothing."""
        self._output.partial = []

    async def end(self, call: Call) -> tuple[int, ...]:
        """Return the answer, of which only the end was lost."""
        return tuple(self._output.partial)


class Lessening:
    """Makes less of a call at the rungs that shorten it."""

    def at(self, call: Call, rung: str) -> Call | None:
        """Return the call as it is asked there."""
        ask, work = call.payload, call.work
        assert isinstance(ask, Ask)
        if rung == "short_output":
            most = max(1, ask.plan.max_tokens // 2)
            less = replace(work, output_tokens=min(work.output_tokens, most))
            return replace(call, work=less, payload=replace(ask, limit=min(ask.limit, most)))
        if rung == "short_context":
            return replace(call, work=replace(work, prompt_tokens=max(1, work.prompt_tokens // 2)))
        return None


@dataclass(slots=True, eq=False)
class Client:
    """One client and its call, from arrival to end."""

    plan: CallPlan
    pipeline: Pipeline
    arrived: Callable[[Work], None]
    note: Callable[[str], None]
    output: Output = field(init=False)
    call: Call | None = None
    endings: list[str] = field(default_factory=list)
    error: BaseException | None = None
    answer: tuple[int, ...] = ()
    ended_at: float | None = None
    left: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.output = Output(self.plan)

    def arrive(self) -> None:
        """Send the call; leave at the planned time."""
        loop, plan = asyncio.get_running_loop(), self.plan
        self.task = loop.create_task(self._live(), name=plan.request_id)
        if plan.leaves_after_s is not None:
            loop.call_later(plan.leaves_after_s, self._leave)

    def _leave(self) -> None:
        assert self.task is not None
        if not self.task.done():
            self.left = True
            self.task.cancel()

    def expected(self) -> tuple[int, ...]:
        """Return the whole answer as it should be, at full service."""
        return tuple(token_of(self.plan.n, position) for position in range(self.plan.output_tokens))

    async def _live(self) -> None:
        self.call = call = self._make()
        self.arrived(call.work)
        try:
            self.answer = await self.pipeline(call)
            self._ended("ok")
        except asyncio.CancelledError:
            self._ended("left")
            raise
        except Exception as error:
            self.error = error
            self._ended(type(error).__name__)

    def _make(self) -> Call:
        plan, clock = self.plan, SystemClock()
        within_s, resumable = plan.within_s, None
        if plan.resumable is not None:
            resumable = Continuation(self.output, plan.max_tokens, proven=plan.resumable)
        return Call(
            plan.request_id,
            deadline=Deadline.never(clock) if within_s is None else Deadline.after(within_s, clock),
            work=Work(plan.prompt_tokens, plan.estimate),
            idempotent=plan.idempotent,
            payload=Ask(plan, self.output, plan.output_tokens),
            priority=plan.priority,
            tenant=plan.tenant,
            service_class=plan.service_class,
            resumable=resumable,
            degradable=Lessening() if plan.degradable else None,
        )

    def _ended(self, how: str) -> None:
        self.endings.append(how)
        self.output.ended = True
        self.ended_at = asyncio.get_running_loop().time()
        self.note(f"{self.plan.request_id} ended: {how}")
