"""A small model of one arm: replicas with slots, a gateway that retries or not, one replica lost on the way.

It is not the cluster. It makes calls, events and signals that hang together as real ones do, so that what judges and
draws histories can be tested on histories whose truth is known.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.history import CallRecord, GatewayEventRecord, SignalRecord

START_S = 0.058
"""From a slot to the first token: queueing inside the engine and prefill."""
STEP_S = 0.033
KV_TOKENS = 12_288
SLOTS = 8


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned call; the same in every arm of a seed."""

    n: int
    offset_s: float
    stream: bool
    prompt_tokens: int
    max_tokens: int


def arrivals(seed: int, rate_per_s: float, duration_s: float) -> list[Arrival]:
    """Return Poisson arrivals with drawn lengths."""
    chance = random.Random(f"{seed}/arrivals")
    found, at = [], chance.expovariate(rate_per_s)
    while at < duration_s:
        stream = chance.random() < 0.8
        found.append(Arrival(len(found), at, stream, chance.randint(120, 180), chance.randint(14, 22)))
        at += chance.expovariate(rate_per_s)
    return found


@dataclass(frozen=True, slots=True)
class Conduct:
    """How the gateway and the lost replica's link behave."""

    retry: bool
    ejects: bool
    dead_link: str = "reset"
    """``reset``: a connection to the lost replica fails at once; ``hang``: nothing comes back."""
    header_timeout_s: float = 1.0
    removed_after_s: float = 2.4
    """When the dead replica's link leaves the gateway's list."""
    returns_after_s: float = 17.2
    client_deadline_s: float = 10.0
    typed_cuts: bool = True
    cuts: bool = True
    """Whether streams that had begun on the lost replica are cut; False resumes them."""


@dataclass(slots=True)
class _Try:
    call: Arrival
    attempt: int
    replica: str
    started: float
    first: float | None = None
    tokens: list[float] = field(default_factory=list)
    ended: float = 0.0
    outcome: str = "ok"
    error: str = ""


class ArmModel:
    """Runs one arm; everything inside is in seconds from the arm's start."""

    def __init__(
        self, arm: str, seed: int, start_at: float, calls: Sequence[Arrival], conduct: Conduct
    ) -> None:
        self.arm, self.seed, self.start_at, self.calls, self.conduct = arm, seed, start_at, calls, conduct
        self.fault_s: float | None = None
        self.victim = ""
        self.tries: list[_Try] = []
        self.retries: list[tuple[float, str, int, float]] = []
        self.ejected_s: float | None = None

    def request_id(self, n: int) -> str:
        return f"{self.arm}-{n:05d}"

    def _links(self, at: float) -> list[str]:
        links = [f"replica-{i}.a{i}f{self.seed % 10}" for i in range(3)]
        if self.fault_s is None:
            return links
        gone = self.fault_s + self.conduct.removed_after_s
        if self.ejected_s is not None:
            gone = min(gone, self.ejected_s)
        if at >= gone:
            links.remove(self.victim)
        if at >= self.fault_s + self.conduct.returns_after_s:
            links.append(self.new_link)
        return links

    @property
    def new_link(self) -> str:
        return self.victim.split(".")[0] + f".c{self.seed % 10}e2"

    def run(self, fault_s: float | None = None, victim: str = "") -> None:
        """Play the arm; with a fault when ``fault_s`` is given."""
        self.fault_s, self.victim, self.tries, self.ejected_s = fault_s, victim, [], None
        self.retries = []
        slots: dict[str, list[float]] = {}
        failures, turn = 0, 0
        todo = [(call.offset_s, call.n, 1, "") for call in self.calls]
        heapq.heapify(todo)
        while todo:
            at, n, attempt, avoid = heapq.heappop(todo)
            call = self.calls[n]
            links = [link for link in self._links(at) if link != avoid] or self._links(at)
            if self.conduct.ejects:
                # Outstanding calls, queued ones too: busy slots alone would tie as soon as all are busy.
                held = Counter(made.replica for made in self.tries if made.ended > at)
                replica = min(links, key=held.__getitem__)
            else:
                replica = links[turn % len(links)]
                turn += 1
            made = self._try(call, attempt, replica, at, slots.setdefault(replica, [0.0] * SLOTS))
            self.tries.append(made)
            if made.outcome == "ok" or made.first is not None:
                continue
            failures += 1
            if self.conduct.ejects and self.ejected_s is None and failures >= 2:
                self.ejected_s = made.ended + 0.002
            if self.conduct.retry and attempt < 3:
                delay = random.Random(f"{self.seed}/{n}/{attempt}/delay").uniform(0, 0.05 * 2**attempt)
                self.retries.append((made.ended, self.request_id(n), attempt + 1, delay))
                heapq.heappush(todo, (made.ended + delay, n, attempt + 1, replica))

    def _try(self, call: Arrival, attempt: int, replica: str, at: float, slots: list[float]) -> _Try:
        chance = random.Random(f"{self.seed}/{call.n}/{attempt}/service")
        made = _Try(call, attempt, replica, at)
        dead = self.fault_s is not None and replica == self.victim and at >= self.fault_s
        if dead:
            hangs = self.conduct.dead_link == "hang"
            wait = self.conduct.header_timeout_s if self.conduct.ejects else self.conduct.client_deadline_s
            made.ended = at + (wait if hangs else 0.004 + chance.random() * 0.004)
            made.outcome, made.error = "failed", "header timeout" if hangs else "connection reset"
            return made
        slot = min(range(len(slots)), key=slots.__getitem__)
        begun = max(at, slots[slot])
        first = begun + START_S + chance.random() * STEP_S + chance.expovariate(1 / 0.008)
        gaps = [STEP_S + chance.expovariate(1 / 0.0012) for _ in range(call.max_tokens - 1)]
        tokens = [first]
        for gap in gaps:
            tokens.append(tokens[-1] + gap)
        made.first, made.tokens, made.ended = first, tokens, tokens[-1] + 0.003
        slots[slot] = made.ended
        if self.fault_s is not None and replica == self.victim and made.ended > self.fault_s:
            if first > self.fault_s:
                made.first, made.tokens = None, []
            elif not self.conduct.cuts:
                return made
            made.tokens = [token for token in made.tokens if token <= self.fault_s]
            made.ended = self.fault_s + 0.003
            made.outcome, made.error = "failed", "connection reset"
        return made

    def held(self, replica: str, at: float) -> tuple[list[str], list[str]]:
        """Return the requests that await their first token on a replica, and those that stream, at a moment."""
        mine = [t for t in self.tries if t.replica == replica and t.started <= at < t.ended]
        awaiting = [self.request_id(t.call.n) for t in mine if t.first is None or t.first > at]
        streaming = [self.request_id(t.call.n) for t in mine if t.first is not None and t.first <= at]
        return awaiting, streaming

    def records(self) -> list[CallRecord]:
        """Return the call records, as the load client would have written them."""
        last: dict[int, _Try] = {}
        for made in self.tries:
            last[made.call.n] = made
        return [self._record(made) for _, made in sorted(last.items())]

    def _record(self, made: _Try) -> CallRecord:
        call, ok = made.call, made.outcome == "ok"
        scheduled = self.start_at + call.offset_s
        late = made.ended - call.offset_s >= self.conduct.client_deadline_s
        cut = not ok and made.first is not None
        lost = "upstream_lost" if self.conduct.typed_cuts or not cut else "cut"
        sha = hashlib.sha256(f"{self.seed}/{call.n}".encode()).hexdigest()
        times = [self.start_at + token for token in made.tokens] if call.stream else []
        return CallRecord(
            arm=self.arm,
            n=call.n,
            request_id=self.request_id(call.n),
            offset_s=call.offset_s,
            scheduled_at=scheduled,
            sent_at=scheduled + 0.0008,
            ended_at=self.start_at + made.ended + 0.001,
            stream=call.stream,
            prompt_sha=sha[:16],
            prompt_tokens=call.prompt_tokens if ok else 0,
            max_tokens=call.max_tokens,
            outcome="ok" if ok else "late" if late else "failed",
            status=200 if made.first is not None else 0 if late else 502,
            error_type="" if ok else "late" if late else lost,
            error="" if ok else f"{made.error} on {made.replica}",
            headers_at=self.start_at + made.first if made.first else None,
            first_token_at=times[0] if times else None,
            token_at=times,
            output_tokens=call.max_tokens if ok else 0,
            finish_reason="length" if ok else "",
            done=ok and call.stream,
            text_sha=sha[16:32] if ok else "",
            replica=made.replica if made.first else "",
            attempts=made.attempt if made.first else 0,
        )

    def _event(self, at: float, event: str, **detail: Any) -> GatewayEventRecord:
        return GatewayEventRecord(self.arm, event, self.start_at + at, detail)

    def events(self) -> list[GatewayEventRecord]:
        """Return the gateway's events in order of time."""
        found = []
        for t in self.tries:
            who = {"request_id": self.request_id(t.call.n), "attempt": t.attempt, "replica": t.replica}
            found.append(self._event(t.started, "attempt_started", **who))
            if t.first is not None:
                found.append(self._event(t.first, "attempt_first_token", **who))
            found.append(self._event(t.ended, "attempt_ended", **who, outcome=t.outcome, error=t.error))
        for at, request, attempt, delay in self.retries:
            found.append(self._event(at, "retry", request_id=request, attempt=attempt, delay_s=delay))
        if self.fault_s is not None:
            gone, back = self.conduct.removed_after_s, self.conduct.returns_after_s
            if self.ejected_s is not None:
                reason = "consecutive failures"
                found.append(self._event(self.ejected_s, "ejected", replica=self.victim, reason=reason))
            found.append(self._event(self.fault_s + gone, "upstream_removed", replica=self.victim))
            found.append(self._event(self.fault_s + back, "upstream_added", replica=self.new_link))
        return sorted(found, key=lambda event: event.at)

    def signals(self, until_s: float, every_s: float = 0.25) -> list[SignalRecord]:
        """Return one sample of every signal each ``every_s`` seconds."""
        return [self._signal(i * every_s) for i in range(1, int(until_s / every_s))]

    def _signal(self, at: float) -> SignalRecord:
        running = [t for t in self.tries if t.started <= at < t.ended]
        waiting = [t for t in running if t.first is None or t.first > at]
        recent = [t for t in self.tries if at - 5 < t.started <= at]
        first = sorted(t.first - t.started for t in self.tries if t.first and at - 5 < t.first <= at)
        work = sum(t.call.prompt_tokens + t.call.max_tokens for t in running)
        live = len(self._links(at))
        calls = len({t.call.n for t in recent})
        offered = sum(t.call.max_tokens * STEP_S + START_S for t in recent) / 5 / SLOTS
        return SignalRecord(
            arm=self.arm,
            at=self.start_at + at,
            queue_depth=float(len(waiting)),
            ttft_p95_s=first[int(0.95 * (len(first) - 1))] if first else None,
            active_tokens=float(work),
            cache_occupancy=work / (KV_TOKENS * live) if live else None,
            reject_rate=0.0 if calls else None,
            retry_rate=sum(t.attempt > 1 for t in recent) / calls if calls else None,
            headroom=1 - offered / live if live else None,
            live_replicas=float(live),
            preemptions=0.0,
        )
