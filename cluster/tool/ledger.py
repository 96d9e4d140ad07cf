"""The ledger: every effect that happened, once, in order. Nothing is ever taken out of it.

It is what a test counts to prove that no side effect happened twice, so it records what the tool *did*, also
when the answer never reached the caller.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO


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
    """Effects by idempotency key; one process, one event loop.

    With a ``journal`` each effect is in that file, a line of JSON each, before anybody hears of it, and a tool that is
    started again goes on with what it did before.
    """

    def __init__(self, clock: Callable[[], float], journal: Path | None = None) -> None:
        self._clock = clock
        self._effects: dict[str, Effect] = {}
        self._replays = 0
        self._journal: BinaryIO | None = None
        if journal is not None:
            self._journal = journal.open("ab+")
            self._recover(self._journal)

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
            self._write_down(done)
            self._effects[key] = done
            return done, False
        if done.transfer != transfer:
            raise KeyReusedError(f"key {key!r} belongs to transfer {done.seq}, which differs")
        self._replays += 1
        return done, True

    def find(self, key: str) -> Effect | None:
        """Return the effect that was done under a key; None when there is none."""
        return self._effects.get(key)

    def effects(self, after: int = 0) -> list[Effect]:
        """Return the effects with a ``seq`` above ``after``."""
        return list(self._effects.values())[max(0, after) :]

    def _write_down(self, effect: Effect) -> None:
        if self._journal is not None:
            self._journal.write(json.dumps(effect.to_json()).encode() + b"\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())

    def _recover(self, journal: BinaryIO) -> None:
        journal.seek(0)
        whole = 0
        for line in journal:
            if not line.endswith(b"\n"):
                break  # cut off while it was written: nobody has heard of it
            told = json.loads(line)
            transfer = Transfer(told["sender"], told["receiver"], told["amount"])
            effect = Effect(told["seq"], told["at"], told["idempotency_key"], transfer)
            self._effects[effect.idempotency_key] = effect
            whole += len(line)
        journal.truncate(whole)
