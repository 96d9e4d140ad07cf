"""Stops sending what would be turned away anyway: adaptive throttling on the side of the client.

Turning a call away costs the other side too, and enough of that brings it down as well. So each client watches
what share of its calls is accepted, and when that falls below half it turns away part of them itself. (Google
SRE, "Handling overload".)

In the gateway it is not part of a profile: there, admission knows how much work the replicas hold and need not
guess it from refusals. It is for clients of a service that they cannot look into.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from policies.call import Call, Handler, T
from policies.clock import Clock, SystemClock
from policies.errors import AttemptTimeout, CallRefused, ReplicaBusy, ReplicaLost, Throttled
from policies.events import EventSink, NullSink, Refused
from policies.growth import come_back_s


@dataclass(frozen=True, slots=True)
class ThrottlingSettings:
    """``k`` times the accepted calls may be sent; the rest is turned away, but never more than ``most`` of all.

    Calls are counted over ``window_s``, in ``buckets`` parts of it. A call that was turned away here is told to
    come back after ``retry_after_s``.
    """

    k: float = 2.0
    window_s: float = 120.0
    buckets: int = 24
    most: float = 0.95
    retry_after_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.k >= 1:
            raise ValueError(f"k is {self.k}: it must be at least 1, or a healthy service is throttled")
        if not (self.window_s > 0 and self.buckets >= 1 and self.retry_after_s > 0):
            raise ValueError(
                f"window_s={self.window_s} and retry_after_s={self.retry_after_s} must be over 0, "
                f"buckets={self.buckets} at least 1"
            )
        if not 0 <= self.most < 1:
            raise ValueError(f"most is {self.most}: it must be in [0, 1), or no probe survives")


def turned_away(error: BaseException) -> bool:
    """Tell whether an error means that the service did not take the call: refused, busy, silent or gone."""
    return isinstance(error, CallRefused | ReplicaBusy | AttemptTimeout | ReplicaLost)


@dataclass(slots=True)
class _Bucket:
    number: int
    requests: int = 0
    accepts: int = 0


class ClientThrottling:
    """Turns calls away with probability ``max(0, (requests - k * accepts) / (requests + 1))``.

    Both numbers count calls that have ended: were they counted as they begin, slow answers would look like
    refusals. A call that was turned away here counts as a request, one that was cancelled not at all.
    """

    def __init__(
        self,
        settings: ThrottlingSettings | None = None,
        *,
        is_rejection: Callable[[BaseException], bool] = turned_away,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._settings = settings or ThrottlingSettings()
        self._is_rejection = is_rejection
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._sink = sink or NullSink()
        self._bucket_s = self._settings.window_s / self._settings.buckets
        self._recent: deque[_Bucket] = deque()
        self._requests = self._accepts = 0

    async def __call__(self, call: Call, inner: Handler[T], /) -> T:
        """Answer the call, or turn it away.

        Raises:
            Throttled: too much was turned away lately.
        """
        if self._rng.random() < self.rejection_probability():
            self._count(accepted=False)
            self._sink.emit(Refused(call.request_id, Throttled.reason))
            raise Throttled(
                f"of {self._requests} calls in the last {self._settings.window_s:g} s "
                f"{self._accepts} were accepted",
                retry_after_s=come_back_s(self._settings.retry_after_s, self._rng),
            )
        try:
            answer = await inner(call)
        except Exception as error:
            self._count(accepted=not self._is_rejection(error))
            raise
        self._count(accepted=True)
        return answer

    def rejection_probability(self) -> float:
        """Return the probability with which the next call is turned away."""
        self._forget()
        excess = (self._requests - self._settings.k * self._accepts) / (self._requests + 1)
        return min(self._settings.most, max(0.0, excess))

    def _count(self, *, accepted: bool) -> None:
        self._forget()
        number = int(self._clock.now() / self._bucket_s)
        if not self._recent or self._recent[-1].number != number:
            self._recent.append(_Bucket(number))
        self._recent[-1].requests += 1
        self._recent[-1].accepts += accepted
        self._requests += 1
        self._accepts += accepted

    def _forget(self) -> None:
        oldest = int(self._clock.now() / self._bucket_s) - self._settings.buckets
        while self._recent and self._recent[0].number <= oldest:
            gone = self._recent.popleft()
            self._requests -= gone.requests
            self._accepts -= gone.accepts
