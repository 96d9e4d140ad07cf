"""Every way in which a call can fail, as seen by a policy.

::

    PolicyError
    ├── CallRefused             nothing was sent to any replica
    │   ├── Overloaded              the first token would come too late
    │   ├── QueueFull               no room to wait in
    │   ├── WaitedTooLong           the wait for a permit came to an end without one
    │   ├── QuotaExceeded           the caller's own share is used up (the only 429)
    │   ├── BreakerOpen             what it needs has been failing
    │   ├── Throttled               most of what was sent lately was turned away
    │   ├── FailedClosed            what is never left out could not be done
    │   └── NoReplica               nobody is there to ask
    ├── DeadlineExceeded        the caller no longer waits
    ├── AttemptError            one attempt on one replica failed; `reached` says how far it had got
    │   ├── ReplicaLost             refused, closed, cut, or ended without an end
    │   ├── AttemptTimeout          silent for too long
    │   │   └── EngineStalled           no token on any stream of the replica
    │   ├── NotResumable            cut in mid-stream, and the rest could differ from what was lost
    │   ├── ReplicaFailed           it answered with an error of its own (5xx)
    │   ├── ReplicaBusy             it has no room now (429, 503): says nothing about its health
    │   └── CallRejected            it found the call itself wrong (other 4xx): repeating cannot help
    └── ToolError               a tool call failed
        ├── ToolBusy                as many calls of that method are under way as may be; it was not asked
        ├── ToolDeadline            the tool did not answer in time; whether it acted is unknown
        ├── ToolUnknown             it was asked to act, and nobody can tell now whether it did
        └── ToolRejected            the tool found the call itself wrong, and did not act

Beside the tree stands ``RungMissed``, which never leaves the ladder.
``AttemptError.reached`` is one of no headers, headers, first token, mid-stream (:class:`Reached`).
"""

from __future__ import annotations

from typing import ClassVar

from policies.fleet import Replica
from policies.progress import Reached


class PolicyError(Exception):
    """Base of all errors of this package."""


class CallRefused(PolicyError):
    """The call was turned away before anything was done for it."""

    reason: ClassVar[str] = "refused"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(CallRefused):
    """The predicted first token lies after the objective or after the caller's deadline."""

    reason: ClassVar[str] = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float, predicted_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.predicted_s = predicted_s


class QueueFull(CallRefused):
    """As many calls wait as may."""

    reason: ClassVar[str] = "queue_full"


class WaitedTooLong(CallRefused):
    """The call waited for a permit as long as it may."""

    reason: ClassVar[str] = "queue_timeout"


class QuotaExceeded(CallRefused):
    """The tenant has used its own share; others are not short of anything."""

    reason: ClassVar[str] = "quota"


class BreakerOpen(CallRefused):
    """What the call needs has been failing and is left alone for a while."""

    reason: ClassVar[str] = "breaker_open"


class Throttled(CallRefused):
    """So much of what was sent lately was turned away that this call was not even sent."""

    reason: ClassVar[str] = "throttled"


class FailedClosed(CallRefused):
    """What no call is answered without could not be done; ``what`` names it, as ``audit`` or ``quota``."""

    reason: ClassVar[str] = "failed_closed"

    def __init__(self, message: str, *, what: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.what = what

    @property
    def code(self) -> str:
        """Return the word for it that a program can test for: ``audit_unavailable``."""
        return f"{self.what}_unavailable"


class NoReplica(CallRefused):
    """No replica is known, or none is left that this call has not failed on."""

    reason: ClassVar[str] = "no_replica"


class RungMissed(Exception):
    """Who answers at a rung without work has nothing for the call: nothing is cached, or it may not wait."""


class DeadlineExceeded(PolicyError):
    """The deadline of the call has passed."""


class AttemptError(PolicyError):
    """One attempt failed.

    Args:
        reached: how far the attempt had got.
        retry_after_s: what the replica asked for, when it did.

    ``attempts`` counts the attempts that the call had taken by then, ``replica`` is where this one was; both
    are set on the way up, by the retry policy and by whoever chose the replica. ``beside`` are the replicas of
    further attempts that failed together with this one, and ``given_up`` says that whoever owns the call's retries
    has decided against another one.
    """

    retryable: ClassVar[bool] = True
    """Whether another replica could do better."""
    counts_against_replica: ClassVar[bool] = True
    """Whether it is evidence that the replica is ill."""

    def __init__(
        self, message: str, *, reached: Reached = Reached.NOTHING, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reached = reached
        self.retry_after_s = retry_after_s
        self.attempts = 1
        self.replica: Replica | None = None
        self.beside: tuple[Replica, ...] = ()
        self.given_up = False


class ReplicaLost(AttemptError):
    """The connection ended, or the answer did without a proper end."""


class AttemptTimeout(AttemptError):
    """No headers, no first token, or no further token within the time allowed for it."""


class EngineStalled(AttemptTimeout):
    """The replica takes calls and answers its health check, but no token comes on any of its streams."""


class NotResumable(AttemptError):
    """The stream was cut and must not be continued; ``why`` says what could come out differently."""

    retryable: ClassVar[bool] = False
    counts_against_replica: ClassVar[bool] = False

    def __init__(self, message: str, *, why: str, reached: Reached = Reached.MID_STREAM) -> None:
        super().__init__(message, reached=reached)
        self.why = why


class ReplicaFailed(AttemptError):
    """The replica answered with an error of its own."""


class ReplicaBusy(AttemptError):
    """The replica has no room at the moment."""

    counts_against_replica: ClassVar[bool] = False


class CallRejected(AttemptError):
    """The replica found the call itself to be wrong; ``status`` and ``body`` are its answer."""

    retryable: ClassVar[bool] = False
    counts_against_replica: ClassVar[bool] = False

    def __init__(
        self, message: str, *, status: int, body: bytes = b"", reached: Reached = Reached.HEADERS
    ) -> None:
        super().__init__(message, reached=reached)
        self.status = status
        self.body = body


class ToolError(PolicyError):
    """The tool answered with an error, or could not be reached."""

    outcome: ClassVar[str] = "error"


class ToolDeadline(ToolError):
    """The tool did not answer in time; it may or may not have acted."""

    outcome: ClassVar[str] = "deadline"


class ToolRejected(ToolError):
    """The tool answered that the call itself is wrong; it is well, and it has not acted."""


class ToolBusy(ToolError):
    """As many calls of that method are under way as may be; the tool was not asked."""

    outcome: ClassVar[str] = "busy"


class ToolUnknown(ToolError):
    """The tool was asked to act, and whether it did is unknown; ``may_be_found``: it can be looked up later."""

    outcome: ClassVar[str] = "unknown"

    def __init__(self, message: str, *, may_be_found: bool) -> None:
        super().__init__(message)
        self.may_be_found = may_be_found
