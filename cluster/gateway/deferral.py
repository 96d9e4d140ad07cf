"""The rung ``deferred``: the caller gets a job in place of an answer."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from cluster.gateway.answer import Answer
from policies.call import Call
from policies.errors import QueueFull, QuotaExceeded, RungMissed


@runtime_checkable
class Deferral(Protocol):
    """The payload of a call at this rung: what makes a job of it."""

    async def accept(self) -> Any:
        """Accept the job; it is on disk when this returns.

        Raises:
            QueueFull: there is no room, or not for this tenant (QuotaExceeded).
        """
        ...


async def defer(call: Call, /) -> Answer:
    """Make a job of a call; the answer is empty, because its receiver knows of the job.

    Raises:
        RungMissed: there is no room for it, so that the reason for which it came here stands.
    """
    later = call.payload
    assert isinstance(later, Deferral), "only what can be put off comes here"
    try:
        await later.accept()
    except (QueueFull, QuotaExceeded) as error:
        raise RungMissed(str(error)) from error
    return Answer()
