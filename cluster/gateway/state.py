"""What hangs on the store: everything of a request that must never be lost or leaked.

A part is None where the gateway runs without a store (``BROWNOUT_STORE=none``, for benchmarks): then nothing is
recorded, claimed or kept, and the gateway says so when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster.gateway.store.store import Store


@dataclass(slots=True)
class State:
    """The parts, each with a module of its own."""

    store: Store | None = None
    tenants: Any = None
    quotas: Any = None
    audit: Any = None
    claims: Any = None
    steps: Any = None
    answers: Any = None
    jobs: Any = None

    async def aclose(self) -> None:
        """Write what still waits to be written, and close."""
        for part in (self.jobs, self.claims, self.answers, self.quotas, self.audit, self.store):
            close = getattr(part, "aclose", None) or getattr(part, "close", None)
            if close is not None:
                await close()
