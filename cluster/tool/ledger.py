"""The ledger: every effect that happened, once, in order. Nothing is ever taken out of it.

It is what a test counts to prove that no side effect happened twice, so it records what the tool *did*, also
when the answer never reached the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


class KeyReusedError(ValueError):
    """The idempotency key was used before, for another transfer."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What is asked for; ``amount`` is a decimal number as text, so that nothing is rounded."""

    sender: str
    receiver: str
    amount: str


@dataclass(frozen=True, slots=True)
class Effect:
    """One line: ``seq`` counts from 1, ``at`` is in seconds since the epoch."""

    seq: int
    at: float
    idempotency_key: str
    transfer: Transfer

    def to_json(self) -> dict[str, Any]:
        """Return the line as the tool shows it."""
        return {
            "seq": self.seq,
            "at": self.at,
            "idempotency_key": self.idempotency_key,
            **asdict(self.transfer),
        }


class Ledger:
    """Effects by idempotency key, in memory; one process, one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._effects: dict[str, Effect] = {}
        self._replays = 0

    @property
    def replays(self) -> int:
        """How many calls found their effect already done."""
        return self._replays

    def submit(self, key: str, transfer: Transfer) -> tuple[Effect, bool]:
        """Do the transfer, or find it done; return the effect and whether it was found.

        Raises:
            KeyReusedError: the key belongs to another transfer; nothing was done.
        """
        done = self._effects.get(key)
        if done is None:
            done = Effect(len(self._effects) + 1, self._clock(), key, transfer)
            self._effects[key] = done
            return done, False
        if done.transfer != transfer:
            raise KeyReusedError(f"key {key!r} belongs to transfer {done.seq}, which differs")
        self._replays += 1
        return done, True

    def effects(self, after: int = 0) -> list[Effect]:
        """Return the effects with a ``seq`` above ``after``."""
        return list(self._effects.values())[max(0, after) :]
