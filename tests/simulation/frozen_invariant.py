"""A replica that takes calls and gives no token, however green its health, is left within two seconds."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from policies.events import AttemptFirstToken, Ejected, Event, ReplicaRemoved, Returned
from policies.fleet import Replica
from policies.progress import Reached
from tests.simulation.judging import Invariant
from tests.simulation.plan import floor_of

WITHIN_S = 2.0
EXCUSE_S = 0.5
"""For so long after a reason to keep the replica has gone, keeping it is forgiven."""
GOOD_PROBES = 3


class FrozenLeave(Invariant):
    """Out of rotation within ``WITHIN_S`` of its first silent stream, if enough others are there.

    It is excused while the floor needs it, while every other busy replica is silent too, and for as long as the
    prompts that it holds may take: a long prefill looks the same from outside.
    """

    name: ClassVar[str] = "frozen replicas leave the rotation"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._on = self.active("stall_watch", "ejection", "timeouts")
        self._out: set[str] = set()
        self._to_prove: dict[str, int] = {}
        """Good answers that those on trial still owe, at most."""
        self._excused_at: dict[Replica, float] = {}
        self._broken: set[Replica] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, Ejected):
            self._out.add(event.replica)
        elif isinstance(event, Returned):
            self._out.discard(event.replica)
            self._to_prove[event.replica] = GOOD_PROBES
        elif isinstance(event, ReplicaRemoved):
            self._out.discard(event.replica)
            self._to_prove.pop(event.replica, None)
        elif isinstance(event, AttemptFirstToken) and event.replica in self._to_prove:
            self._to_prove[event.replica] -= 1
            if not self._to_prove[event.replica]:
                del self._to_prove[event.replica]

    def tick(self) -> None:
        if not self._on:
            return
        now = asyncio.get_running_loop().time()
        frozen = [one for one in self.world.fleet.replicas if self.world.stand.model_of(one).is_frozen]
        suspects = [one for one in frozen if one.name not in self._out]
        if not suspects:
            return
        silent_since = {one: self._silent_since(one) for one in self.world.fleet.replicas}
        for replica in suspects:
            since = silent_since[replica]
            others = [at for other, at in silent_since.items() if other is not replica and at is not None]
            shared = bool(others) and all(now - at > EXCUSE_S for at in others)
            if since is None or shared or self._is_needed(replica):
                self._excused_at[replica] = now
                continue
            since = max(since, self._excused_at.get(replica, 0.0) + EXCUSE_S - WITHIN_S)
            if now - since > self._allowed_s(replica) and replica not in self._broken:
                self._broken.add(replica)
                self.broken(f"{replica.name} is in rotation, silent for {now - since:.2f} s")

    def _silent_since(self, replica: Replica) -> float | None:
        """Return since when somebody has waited there without any token coming; None when nobody waits."""
        waits, sign_at = [], 0.0
        for one in self.world.bottom.made:
            if one.replica is not replica:
                continue
            progress = one.attempt.progress
            begun = progress.reached >= Reached.FIRST_TOKEN
            sign_at = max(sign_at, one.last_sign_at)
            if one.in_flight and not progress.paused:
                waits.append(progress.last_at if begun else progress.started_at)
        return max(sign_at, min(waits)) if waits else None

    def _allowed_s(self, replica: Replica) -> float:
        held = (one for one in self.world.bottom.in_flight if one.replica is replica)
        prompts = (one.call.work.prompt_tokens for one in held)
        return max(WITHIN_S, 0.5 + 3.0 * max(prompts) * self.world.plan.replicas.prefill_s_per_token)

    def _is_needed(self, replica: Replica) -> bool:
        known = [one.name for one in self.world.fleet.replicas]
        in_full = [name for name in known if name not in self._out and name not in self._to_prove]
        floor = floor_of(self.world.plan.knobs.outlier.floor_share, len(known))
        return len([name for name in in_full if name != replica.name]) < floor
