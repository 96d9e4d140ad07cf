"""A model without an engine: the next token is a function of those before it, and a stream can be cut anywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from policies.call import Call
from policies.errors import AttemptError, ReplicaLost
from policies.progress import Reached
from policies.resume import Transcript
from policies.work import Work


def next_token(ids: list[int]) -> int:
    """Return what a greedy model would choose after these ids."""
    return zlib.crc32(bytes(str(ids), "ascii")) % 50_000


def undisturbed(prompt: list[int], count: int) -> list[int]:
    """Return the whole output."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@dataclass
class Client:
    """A caller and the account of what it has got, which is what a resume goes on from."""

    transcript: Transcript
    refusal: str | None = None
    got: list[int] = field(default_factory=list)
    ended: int = 0
    forgotten: int = 0

    @property
    def tokens(self) -> int:
        return len(self.transcript.output)

    @property
    def complete(self) -> bool:
        return self.transcript.complete

    def continued(self, call: Call) -> Call:
        ids, rest = self.transcript.ids, self.transcript.remaining or 0
        return replace(call, payload=(ids, rest), work=Work(len(ids), rest))

    def forget(self) -> None:
        self.transcript.output.clear()
        self.forgotten += 1

    async def end(self, call: Call) -> Any:
        self.ended += 1
        return "answer"


@dataclass
class Engine:
    """The handler: generates for the client; attempt n is cut after ``cuts[n]`` tokens of its own."""

    client: Client
    cuts: list[int | None]
    streams: bool = True
    """Whether tokens reach the client as they come."""
    before_cut: Callable[[Call], None] | None = None
    attempts: list[Call] = field(default_factory=list)

    async def __call__(self, call: Call, /) -> Any:
        self.attempts.append(call)
        cut = self.cuts.pop(0) if self.cuts else None
        ids, rest = call.payload
        ids = list(ids)
        for number in range(rest):
            if number == cut:
                raise self._cut(call, number)
            ids.append(next_token(ids))
            self.client.transcript.output.append(ids[-1])
            if self.streams:
                call.delivery.started = True
                self.client.got.append(ids[-1])
        if cut is not None and cut >= rest:
            raise self._cut(call, rest)
        return "answer"

    def _cut(self, call: Call, tokens: int) -> AttemptError:
        if self.before_cut is not None:
            self.before_cut(call)
        return ReplicaLost("cut", reached=Reached.MID_STREAM if tokens else Reached.HEADERS)
