"""What a caller may rely on: one ending, in time, of a known kind, and a text that nobody has tampered with."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import Any, ClassVar

from policies.errors import AttemptError, CallRefused, PolicyError, ReplicaBusy
from policies.events import AttemptEnded, AttemptStarted, Event, Hedged
from tests.simulation.bottom import InFlight
from tests.simulation.clients import Ask
from tests.simulation.judging import Invariant

EPSILON_S = 1e-6


class EndsOnce(Invariant):
    """Every call ends exactly once: with an answer, with an error of the tree, or because its client left."""

    name: ClassVar[str] = "every call ends once"

    def at_end(self) -> None:
        for name, client in self.world.clients.items():
            if len(client.endings) != 1:
                self.broken(f"{name} ended {len(client.endings)} times: {client.endings}")
            if client.error is not None and not isinstance(client.error, PolicyError):
                self.broken(f"{name} got {client.error!r}, which is no error of the policies")


class TextIntact(Invariant):
    """No token is lost, repeated or changed, and none comes after the end."""

    name: ClassVar[str] = "text is intact"

    def at_end(self) -> None:
        for name, client in self.world.clients.items():
            expected, output = client.expected(), client.output
            if output.after_the_end:
                self.broken(f"{name} was sent {output.after_the_end} tokens after its end")
            got = tuple(output.received) if client.plan.stream else client.answer
            ok = client.endings == ["ok"]
            if ok and got != self._asked(name, expected):
                self.broken(f"{name} ended well with {_differs(got, expected)}")
            elif not ok and got != expected[: len(got)]:
                self.broken(f"{name} was sent {_differs(got, expected)}")

    def _asked(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        """Return the answer at the rung at which the call was asked last."""
        last = next(one for one in reversed(self.world.bottom.made) if one.call.request_id == name)
        ask = last.call.payload
        assert isinstance(ask, Ask)
        return expected[: ask.limit]


def _differs(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    same = next((n for n, (one, other) in enumerate(zip(got, expected, strict=False)) if one != other), None)
    if same is None:
        return f"{len(got)} of {len(expected)} tokens"
    return f"{len(got)} tokens, at position {same} {got[same]} instead of {expected[same]}"


class OnTime(Invariant):
    """Nothing ends and nothing begins after the caller's deadline; who leaves is let go at once."""

    name: ClassVar[str] = "deadlines hold"
    listens: ClassVar[bool] = True

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            client = self.world.clients[event.request_id]
            due = client.plan.at_s + (client.plan.within_s or 1e9)
            if at_s > due + EPSILON_S:
                self.broken(
                    f"attempt {event.attempt} of {event.request_id} began {at_s - due:.3f} s too late"
                )

    def at_end(self) -> None:
        for name, client in self.world.clients.items():
            plan, ended_at = client.plan, client.ended_at
            if ended_at is None:
                continue
            if plan.within_s is not None and ended_at > plan.at_s + plan.within_s + EPSILON_S:
                self.broken(
                    f"{name} ended {ended_at - plan.at_s:.3f} s after its arrival, not {plan.within_s:g}"
                )
            if client.left and ended_at > plan.at_s + (plan.leaves_after_s or 0.0) + EPSILON_S:
                self.broken(f"{name} had left, but went on until {ended_at:.3f} s")


class AttemptsBounded(Invariant):
    """At most the allowed attempts, each with the next number; without idempotency only one that was taken."""

    name: ClassVar[str] = "attempts are bounded"
    listens: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._beaten: set[tuple[str, int]] = set()
        """Attempts that were cancelled: by the end of their call, or because a hedge was faster."""
        self._hedges: set[tuple[str, int]] = set()

    def heard(self, at_s: float, event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.outcome == "cancelled":
            self._beaten.add((event.request_id, event.attempt))
        elif isinstance(event, Hedged):
            self._hedges.add((event.request_id, event.attempt))

    def at_end(self) -> None:
        by_call: dict[str, list[InFlight]] = {}
        for made in self.world.bottom.made:
            by_call.setdefault(made.call.request_id, []).append(made)
        for name, attempts in by_call.items():
            numbers = [one.attempt.number for one in attempts]
            if numbers != list(range(1, len(numbers) + 1)):
                self.broken(f"{name} had the attempts {numbers}")
            self._too_many(name, attempts)
            self._same_work_twice(name, attempts)

    def _too_many(self, name: str, attempts: list[InFlight]) -> None:
        """Count attempts in a row that brought nothing, and continuations; a hedged pair is one turn."""
        knobs = self.world.plan.knobs
        most = knobs.max_attempts if self.active("retry") or self.active("hedging") else 1
        turns: list[list[InFlight]] = []
        for one in attempts:
            if (name, one.attempt.number) in self._hedges:
                turns[-1].append(one)
            else:
                turns.append([one])
        fruitless = resumes = 0
        for turn, following in zip_longest(turns, turns[1:]):
            kept = following is not None and _start(following[0]) > 0 and any(one.tokens for one in turn)
            made = [one for one in turn if (name, one.attempt.number) not in self._beaten]
            fruitless = 0 if kept else fruitless + len(made)
            resumes += _start(turn[0]) > 0
            if fruitless > most:
                self.broken(
                    f"{name} had {fruitless} attempts in a row that brought nothing, allowed are {most}"
                )
        if resumes > knobs.resume.max_resumes:
            self.broken(f"{name} was continued {resumes} times")

    def _same_work_twice(self, name: str, attempts: list[InFlight]) -> None:
        if self.world.clients[name].plan.idempotent:
            return
        for earlier, later in pairwise(attempts):
            if not (_start(later) > 0 or isinstance(earlier.error, ReplicaBusy)):
                self.broken(f"{name} must not be done twice, but was after {earlier.error!r}")


def _start(one: InFlight) -> int:
    """Return the position from which an attempt was to go on; 0 when it was to start."""
    ask = one.call.payload
    assert isinstance(ask, Ask)
    return ask.start


class ErrorsTellTheTruth(Invariant):
    """A refusal says when to come back and was not preceded by work; an attempt's error counts the attempts."""

    name: ClassVar[str] = "errors tell the truth"

    def at_end(self) -> None:
        tried: dict[str, int] = {}
        for made in self.world.bottom.made:
            tried[made.call.request_id] = tried.get(made.call.request_id, 0) + 1
        for name, client in self.world.clients.items():
            error, count = client.error, tried.get(name, 0)
            if isinstance(error, CallRefused):
                if not error.retry_after_s > 0:
                    self.broken(f"{name} was refused with retry_after_s={error.retry_after_s}")
                if count:
                    self.broken(f"{name} was refused ({error!r}) after {count} attempts")
            elif isinstance(error, AttemptError) and error.attempts != count:
                self.broken(f"{name} failed after {count} attempts, its error says {error.attempts}")
            if client.call is not None and client.call.delivery.attempts != count:
                self.broken(f"{name} had {count} attempts, it says {client.call.delivery.attempts}")


class NobodyWorksForTheGone(Invariant):
    """As soon as a call is over, no attempt of it is in flight."""

    name: ClassVar[str] = "no work for those who are gone"

    def look(self) -> None:
        for one in self.world.bottom.in_flight:
            client = self.world.clients[one.call.request_id]
            if client.endings:
                self.broken(f"{one.call.request_id} is over, but its attempt {one.attempt.number} goes on")
