"""Who waits, and who is next: by priority, by age, and fairly between tenants by token work.

Each priority has two lanes, one of which is for calls with a large footprint, so that these can wait for room
in the cache while small ones pass. Within a lane tenants take turns by token work (:mod:`policies.fair_lane`).
The calls of one tenant are served in the order in which they came, or the newest first while the
lane is overloaded: then only a fresh call can still be answered in time.

Nobody starves. A lane rises one priority for each ``age_s`` that its oldest waiter waits, and of what is served a
``least_share`` goes to each lane that the more important ones would leave with nothing.

Every operation takes O(log n) for n waiters, on average over many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic

from policies.codel import ControlledDelay
from policies.fair_lane import Lane, W, Waiter
from policies.priority import Priority
from policies.work import Backlog, Work

_OWED: Final = 1.0 - 1e-9
"""Credit from which a lane is owed a turn; a sum of small shares may fall short of 1 by rounding."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds and turns.

    At most ``most_calls`` wait, with at most ``most_tokens`` (prompt and expected output) together, or a single
    larger call. ``age_s`` raises a waiter by one priority each time; infinity never does. ``least_share`` of the
    calls served goes to each lane that waits behind a more important one. A lane is overloaded when it has delayed
    calls by more than ``target_share`` of the objective (for the first token) through ``interval_share`` of it.
    ``most_tenants`` bounds the memory of tenants that do not wait.
    """

    most_calls: int = 2_000
    most_tokens: int = 4_000_000
    age_s: float = 2.0
    least_share: float = 0.03
    target_share: float = 0.075
    interval_share: float = 0.2
    most_tenants: int = 1_024

    def __post_init__(self) -> None:
        for name in ("most_calls", "most_tokens", "most_tenants"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not self.age_s > 0:
            raise ValueError(f"age_s is {self.age_s}: it must be over 0 (infinity: waiters do not age)")
        if not 0 <= self.least_share <= 0.1:
            raise ValueError(f"least_share is {self.least_share}: it must be between 0 and 0.1")
        if not 0 < self.target_share < self.interval_share:
            raise ValueError(
                f"target_share={self.target_share} must be over 0 and less than interval_share={self.interval_share}"
            )


class FairQueue(Generic[W]):
    """The queue; it holds waiters and knows nothing of permits. ``now`` is always the clock's present instant."""

    def __init__(self, settings: QueueSettings | None = None, *, objective_s: float = 5.0) -> None:
        self._settings = settings or QueueSettings()
        self._target_s = self._settings.target_share * objective_s
        interval_s = self._settings.interval_share * objective_s

        def lane(priority: Priority) -> Lane[W]:
            codel = ControlledDelay(self._target_s, interval_s)
            return Lane(priority, codel, self._settings.most_tenants)

        self._lanes = [(lane(one), lane(one)) for one in Priority]
        self._all = [lane for pair in self._lanes for lane in pair]
        self._held: dict[str, list[int]] = {}
        self._calls = 0
        self.tokens = 0
        """Prompt and expected output tokens of all that wait."""

    def __len__(self) -> int:
        return self._calls

    # --- room --------------------------------------------------------------------------------------------

    def has_room(self, work: Work) -> bool:
        """Tell whether a call of that work may wait."""
        settings = self._settings
        fits = self.tokens + work.tokens <= settings.most_tokens or self._calls == 0
        return fits and self._calls < settings.most_calls

    def displaceable(self, priority: Priority, work: Work) -> list[W]:
        """Return who would have to go for a call of that priority; empty when that would not make room.

        They are the least important and most recent, and all less important than the call.
        """
        calls, tokens, chosen = self._calls, self.tokens, list[W]()
        for lane in reversed(self._all):
            if lane.priority <= priority:
                break
            for waiter in reversed(lane.order):
                chosen.append(waiter)
                calls, tokens = calls - 1, tokens - waiter.work.tokens
                enough = tokens + work.tokens <= self._settings.most_tokens or calls == 0
                if enough and calls < self._settings.most_calls:
                    return chosen
        return []

    def share_of(self, tenant: str) -> float:
        """Return how much of the queue's bound the tenant fills, in calls or in tokens, whichever is more."""
        calls, tokens = self._held.get(tenant, (0, 0))
        return max(calls / self._settings.most_calls, tokens / self._settings.most_tokens)

    def holds_only(self, tenant: str) -> bool:
        """Tell whether nobody waits but that tenant."""
        return not self._held or (len(self._held) == 1 and tenant in self._held)

    # --- coming and going --------------------------------------------------------------------------------

    def add(self, waiter: W, now: float) -> None:
        """Let it wait."""
        lane = self._lane(waiter)
        lane.add(waiter)
        lane.observe(now)
        self._count(waiter, 1)

    def remove(self, waiter: W, now: float) -> None:
        """It leaves without being served."""
        lane = self._lane(waiter)
        lane.remove(waiter)
        lane.observe(now)
        self._count(waiter, -1)

    def serve(self, waiter: W, now: float) -> None:
        """It leaves because it is its turn; its tenant is charged for the expected work at once."""
        lane = self._lane(waiter)
        if lane.credit >= _OWED:
            lane.credit = 0.0
        self.remove(waiter, now)
        self.passed(waiter)

    def passed(self, waiter: Waiter) -> None:
        """It is served, and does not wait (any more): it is charged, and those passed over are owed for it."""
        lane = self._lane(waiter)
        lane.charge(waiter.tenant, waiter.work.tokens)
        if self._calls:
            for other in self._all:
                if other.priority > lane.priority and other.order:
                    other.credit = min(1.0, other.credit + self._settings.least_share)

    def settle(self, waiter: Waiter, tokens: int) -> None:
        """What was served came to that many tokens in the end; the charge is corrected."""
        if tokens != waiter.work.tokens:
            self._lane(waiter).settle(waiter.tenant, tokens - waiter.work.tokens)

    # --- turns -------------------------------------------------------------------------------------------

    def in_turn(self, now: float) -> Iterator[W]:
        """Yield who is next in each lane, the one whose turn it is first; for use before anybody comes or leaves."""
        turns = []
        age_s = self._settings.age_s
        for index, lane in enumerate(self._all):
            if lane.order:
                since = lane.oldest().since
                rank = max(0, lane.priority - int((now - since) / age_s))
                turns.append((lane.credit < _OWED, rank, since, index))
        if len(turns) > 1:
            turns.sort()
        for not_owed, rank, _, index in turns:
            lane = self._all[index]
            yield lane.oldest() if rank < lane.priority and not_owed else lane.in_turn()

    def tick(self, now: float) -> None:
        """Let time pass for the lanes."""
        for lane in self._all:
            if lane.order:
                lane.observe(now)

    def hopeless(self, now: float) -> W | None:
        """Return a waiter of an overloaded lane that has waited longer than one may there; None when there is none.

        That is twice the target for the least important, and twice as long for each priority above. Who is alone
        in its lane is not given up: nobody would be served instead.
        """
        for lane in self._all:
            if len(lane.order) > 1 and lane.codel.overloaded:
                oldest = lane.oldest()
                if now - oldest.since > self._target_s * 2.0 ** (len(Priority) - lane.priority):
                    return oldest
        return None

    def is_overloaded(self, priority: Priority) -> bool:
        """Tell whether calls of that priority are served newest first at present."""
        return any(lane.codel.overloaded for lane in self._lanes[priority])

    # --- what is waiting ---------------------------------------------------------------------------------

    def calls(self, priority: Priority) -> int:
        """Return the number of waiters of that priority."""
        return sum(len(lane.order) for lane in self._lanes[priority])

    def backlog(self, down_to: Priority = Priority.SHEDDABLE) -> Backlog:
        """Return the work that waits, of that priority and of more important ones."""
        calls = prompt = output = 0
        for pair in self._lanes[: down_to + 1]:
            for lane in pair:
                calls += len(lane.order)
                prompt += lane.prompt_tokens
                output += lane.output_tokens
        return Backlog(calls, prompt, output)

    def _lane(self, waiter: Waiter) -> Lane[W]:
        return self._lanes[waiter.priority][waiter.large]

    def _count(self, waiter: W, sign: int) -> None:
        self._calls += sign
        self.tokens += sign * waiter.work.tokens
        held = self._held.get(waiter.tenant)
        if held is None:
            held = self._held[waiter.tenant] = [0, 0]
        held[0] += sign
        held[1] += sign * waiter.work.tokens
        if held[0] == 0:
            del self._held[waiter.tenant]
