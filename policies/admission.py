"""Lets in as many calls as the replicas can do well at once, and makes the others wait or go away in good order.

An engine that is given more than its batch holds queues the rest itself, blind to priority, tenant and deadline.
So the queue is kept here. A call gets a *permit* for as long as anything is done for it; the limit is the
sum of the limits of the replicas in rotation and is read anew for every decision, so that it falls in the
instant in which a replica is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final

from policies.call import Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import CallRefused, QueueFull, QuotaExceeded, WaitedTooLong
from policies.events import Admitted, EventSink, NullSink, Refused
from policies.fair_lane import Waiter
from policies.fair_queue import FairQueue, QueueSettings
from policies.growth import come_back_s
from policies.limits import Outcome
from policies.priority import Priority
from policies.replica_limits import outcome_of
from policies.shares import PriorityShares, ShareSettings
from policies.work import Backlog


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Knobs; durations in seconds.

    ``tenant_share`` of the queue's bound is what one tenant may fill while others wait. Nobody waits longer than
    ``longest_wait_s`` (None: the objective for the first token). ``most_active_tokens`` is how many tokens (prompt
    and expected output) one replica's cache holds, None where that is not known; calls of more than
    ``large_share`` of it wait in a lane of their own, and hold at most ``large_cache_share`` of all caches, in whole
    replicas and at least one, or the share that they are of recent calls if that is more. ``poll_s`` is how soon
    waiters notice a change of the rotation.
    """

    queue: QueueSettings = field(default_factory=QueueSettings)
    shares: ShareSettings = field(default_factory=ShareSettings)
    tenant_share: float = 0.5
    longest_wait_s: float | None = None
    most_active_tokens: int | None = None
    large_share: float = 0.125
    large_cache_share: float = 0.34
    poll_s: float = 0.05
    most_retry_after_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("tenant_share", "large_share", "large_cache_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be over 0 and at most 1")
        for name in ("longest_wait_s", "most_active_tokens", "poll_s", "most_retry_after_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}: it must be over 0")


_RECENT_WEIGHT: Final = 1 / 64
_LABELS: Final = tuple(one.label for one in Priority)


class _Waiting(Waiter):
    """A call on its way to a permit; ``future`` is done once ``granted`` or ``refusal`` says which."""

    __slots__ = ("future", "granted", "refusal", "request_id")

    def __init__(self, call: Call, since: float, *, large: bool) -> None:
        super().__init__(call.priority, call.tenant, call.work, since, large=large)
        self.request_id = call.request_id
        self.granted = False
        self.refusal: CallRefused | None = None
        self.future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Admission:
    """The limiter. Alone it needs nothing but a limit: ``Admission(lambda: 8)``.

    Args:
        limit: returns the sequences that may be in flight now.
        objective_s: the objective for the first token; it bounds the wait and sets what delay is too much.
        live: returns the number of replicas in rotation. With none of them nothing is kept waiting: who stands
            below has the right error for it.
        unloaded_ttft_s: returns the seconds to the first token once a call with so many prompt tokens is let in.
        drain_s: returns the seconds in which a backlog is worked off, on top of what is in flight.
    """

    def __init__(
        self,
        limit: Callable[[], float],
        objective_s: float = 5.0,
        *,
        settings: AdmissionSettings | None = None,
        live: Callable[[], int] = lambda: 1,
        unloaded_ttft_s: Callable[[int], float] = lambda _: 0.0,
        drain_s: Callable[[Backlog], float] = lambda _: 1.0,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if not objective_s > 0:
            raise ValueError(f"objective_s is {objective_s}: it must be over 0")
        self._settings = settings or AdmissionSettings()
        self._longest_wait_s = min(objective_s, self._settings.longest_wait_s or objective_s)
        self._limit = limit
        self._live = live
        self._unloaded_ttft_s = unloaded_ttft_s
        self._drain_s = drain_s
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._queue = FairQueue[_Waiting](self._settings.queue, objective_s=objective_s)
        self._shares = PriorityShares(self._settings.shares)
        self._timer: asyncio.TimerHandle | None = None
        self.active_tokens = 0
        """Prompt and expected output tokens of the calls that hold a permit."""
        self.active_large_tokens = 0
        """Those of large calls among them."""
        self._large_of_recent = 0.0
        self.closed: Counter[Outcome] = Counter()
        """Permits given back, by how they were closed."""

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call once it has a permit.

        Raises:
            QueueFull: no room to wait in, or displaced by a more important call.
            QuotaExceeded: its tenant fills its share of the queue while others wait.
            WaitedTooLong: no permit came in the time in which it would have been of use.
        """
        now = self._clock.now()
        waiting = _Waiting(call, now, large=self._is_large(call.work.tokens))
        self._large_of_recent += _RECENT_WEIGHT * (waiting.large - self._large_of_recent)
        self._shares.seen(call.priority, now)
        if len(self._queue) or self._next_of([waiting], now) is None:
            await self._wait(call, waiting, now)
        else:
            self._queue.passed(waiting)
            self._take(waiting, now)
        with _Permit(self, call, waiting):
            return await inner(call)

    def poke(self) -> None:
        """Look whether somebody can be let in; for whoever knows that the limit has grown."""
        self._grant(self._clock.now())

    # --- what is visible ---------------------------------------------------------------------------------

    @property
    def limit(self) -> float:
        """Return the sequences that may be in flight now."""
        return self._limit()

    def in_use(self, priority: Priority | None = None) -> int:
        """Return the sequences that hold a permit, of one priority or of all."""
        return self._shares.total if priority is None else self._shares.in_use[priority]

    def queued(self, priority: Priority | None = None) -> int:
        """Return the calls that wait, of one priority or of all."""
        return len(self._queue) if priority is None else self._queue.calls(priority)

    def backlog(self, down_to: Priority = Priority.SHEDDABLE) -> Backlog:
        """Return the work that waits here, of that priority and of more important ones."""
        return self._queue.backlog(down_to)

    # --- waiting -----------------------------------------------------------------------------------------

    async def _wait(self, call: Call, waiting: _Waiting, now: float) -> None:
        wait_s = self._make_room(call, waiting)
        self._queue.add(waiting, now)
        self._grant(now)
        if waiting.granted:
            return
        waiting.future = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(wait_s, partial(self._expire, waiting))
        try:
            await waiting.future
        except BaseException:
            self._abandon(waiting)
            raise
        finally:
            timer.cancel()
            waiting.future = None
            call.delivery.waited_s += self._clock.now() - now
        if waiting.refusal is not None:
            raise waiting.refusal

    def _make_room(self, call: Call, waiting: _Waiting) -> float:
        """Return how long the call may wait, once there is room for it.

        Raises:
            CallRefused: it may not wait.
        """
        queue, settings = self._queue, self._settings
        useful_s = call.deadline.remaining() - self._unloaded_ttft_s(call.work.prompt_tokens)
        left_s = self._longest_wait_s - call.delivery.waited_s  # a lessened call has waited before
        wait_s = min(left_s, useful_s)
        if not wait_s > 0:
            raise self._refusal(waiting, WaitedTooLong, "there is no time to wait for a permit")
        if queue.share_of(call.tenant) >= settings.tenant_share and not queue.holds_only(call.tenant):
            share = f"{100 * settings.tenant_share:.0f} %"
            raise self._refusal(waiting, QuotaExceeded, f"the tenant's calls fill {share} of the queue")
        if not queue.has_room(call.work):
            displaced = queue.displaceable(call.priority, call.work)
            if not displaced:
                raise self._refusal(waiting, QueueFull, f"{len(queue)} calls wait already")
            for one in displaced:
                self._turn_away(one, QueueFull, "displaced by a more important call")
        return wait_s

    def _abandon(self, waiting: _Waiting) -> None:
        """The caller has left; it may have been granted a permit in the same instant."""
        if waiting.granted:
            self._give(waiting, Outcome.IGNORED, used_tokens=0)
        elif waiting.refusal is None:
            self._queue.remove(waiting, self._clock.now())
            self._grant(self._clock.now())

    def _expire(self, waiting: _Waiting) -> None:
        if not waiting.granted and waiting.refusal is None:
            waited_s = self._clock.now() - waiting.since
            self._turn_away(waiting, WaitedTooLong, f"no permit came within {waited_s:.1f} s")
            self._grant(self._clock.now())

    def _turn_away(self, waiting: _Waiting, kind: type[CallRefused], why: str) -> None:
        self._queue.remove(waiting, self._clock.now())
        waiting.refusal = self._refusal(waiting, kind, why)
        waiting.wake()

    def _refusal(self, waiting: _Waiting, kind: type[CallRefused], why: str) -> CallRefused:
        drain_s = max(1.0, self._drain_s(self._queue.backlog()))
        retry_after_s = come_back_s(drain_s, self._rng, most_s=self._settings.most_retry_after_s)
        self._sink.emit(Refused(waiting.request_id, kind.reason))
        return kind(why, retry_after_s=retry_after_s)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock.now()
        self._queue.tick(now)
        while (waiting := self._queue.hopeless(now)) is not None:
            self._turn_away(waiting, WaitedTooLong, "the queue stands, and newer calls are served first")
        self._grant(now)

    # --- permits -----------------------------------------------------------------------------------------

    def _grant(self, now: float) -> None:
        queue = self._queue
        while len(queue):
            waiting = self._next_of(queue.in_turn(now), now)
            if waiting is None:
                break
            queue.serve(waiting, now)
            self._take(waiting, now)
            waiting.wake()
        if len(queue) and self._timer is None:
            self._timer = self._clock.call_later(self._settings.poll_s, self._tick)

    def _next_of(self, in_turn: Iterable[_Waiting], now: float) -> _Waiting | None:
        """Return the first that may be let in.

        One for which there is no room may be passed by more important ones, however long it has waited; its like and
        what matters less wait behind it, so that room comes. Only one that waits for room in the cache, and has not
        waited for so long that it has aged, may be passed by all that need less of it.
        """
        shares, live = self._shares, self._live()
        if shares.total == 0 or live == 0:
            return next(iter(in_turn))
        free = self._limit() - shares.total
        if free < 1:
            return None
        below: int = len(Priority)
        for waiting in in_turn:
            if waiting.priority >= below:
                continue
            sequences = waiting.work.sequences
            patient = now - waiting.since < self._settings.queue.age_s
            if sequences > free:
                below = waiting.priority
            elif waiting.large and not self._fits_among_large(waiting, live):
                continue  # waits for others of its kind only: nobody else has to make room for it
            elif not self._fits_cache(waiting, live):
                below = below if waiting.large and patient else waiting.priority
            elif sequences > free - shares.kept_from(waiting.priority, shares.total + free, now):
                below = waiting.priority
            else:
                return waiting
        return None

    def _is_large(self, tokens: int) -> bool:
        most = self._settings.most_active_tokens
        return most is not None and tokens > self._settings.large_share * most

    def _fits_cache(self, waiting: _Waiting, live: int) -> bool:
        most = self._settings.most_active_tokens
        return most is None or self.active_tokens + waiting.work.tokens <= most * live

    def _fits_among_large(self, waiting: _Waiting, live: int) -> bool:
        most = self._settings.most_active_tokens
        if most is None or self.active_large_tokens == 0:
            return True
        share = max(self._settings.large_cache_share, self._large_of_recent)
        return self.active_large_tokens + waiting.work.tokens <= most * max(1, round(share * live))

    def _take(self, waiting: _Waiting, now: float) -> None:
        waiting.granted = True
        self._shares.take(waiting.priority, waiting.work.sequences)
        self.active_tokens += waiting.work.tokens
        self.active_large_tokens += waiting.work.tokens * waiting.large
        self._sink.emit(Admitted(waiting.request_id, _LABELS[waiting.priority], now - waiting.since))

    def _give(self, waiting: _Waiting, outcome: Outcome, used_tokens: int) -> None:
        self._shares.give(waiting.priority, waiting.work.sequences)
        self.active_tokens -= waiting.work.tokens
        self.active_large_tokens -= waiting.work.tokens * waiting.large
        self.closed[outcome] += 1
        self._queue.settle(waiting, used_tokens)
        self._grant(self._clock.now())


class _Permit:
    """Held around everything that is done for a call; closes itself by how the block ends."""

    __slots__ = ("_admission", "_attempts", "_call", "_output", "_waiting")

    def __init__(self, admission: Admission, call: Call, waiting: _Waiting) -> None:
        self._admission = admission
        self._call = call
        self._waiting = waiting
        self._attempts = call.delivery.attempts
        self._output = call.delivery.output_tokens

    def __enter__(self) -> None:
        """The permit is held already."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = outcome_of(error)
        if isinstance(error, asyncio.CancelledError) and self._call.deadline.remaining() == 0:
            outcome = Outcome.DROPPED  # cut off by the deadline further out, not by a caller who left
        self._admission._give(self._waiting, outcome, self._used_tokens(error))

    def _used_tokens(self, error: BaseException | None) -> int:
        """Return what the call came to: as counted where attempts were made, else as expected or nothing."""
        delivery, work = self._call.delivery, self._call.work
        if delivery.attempts != self._attempts:
            return work.prompt_tokens + delivery.output_tokens - self._output
        return work.tokens if error is None else 0
