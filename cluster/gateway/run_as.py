"""A request that the gateway makes to itself, for somebody who asked before: a job.

It goes the way of every other request, so that no check is left out. The one thing it has no use for is a key: who
asked was known when the job was accepted, and whether they still may is asked when it is begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from cluster.gateway.identity import Identity

RUN_AS: Final = "brownout.run_as"
"""Key of the ASGI scope. Servers make scopes of their own, so that no client can set it."""


@dataclass(frozen=True, slots=True)
class RunAs:
    """Whose request it is, and the job that it does."""

    identity: Identity
    job_id: str


def run_as(scope: Scope) -> RunAs | None:
    """Return for whom the gateway makes this request to itself; None where a client made it."""
    given = scope.get(RUN_AS)
    return given if isinstance(given, RunAs) else None
