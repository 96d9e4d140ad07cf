"""The handler at the bottom of the simulated pipeline, and the book of what is really in flight.

It keeps the same contract as the gateway's own: progress first, then ``opened`` once, then each token to the
receiver while the attempt counts as paused, and the connection closed however it ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from policies.call import Attempt, Call
from policies.errors import AttemptError
from policies.fleet import Replica
from tests.simulation.clients import Ask
from tests.simulation.replica_model import END, HEADERS, ModelReplica, Stream
from tests.simulation.trace import Trace


@dataclass(slots=True, eq=False)
class InFlight:
    """One attempt as the replica's side sees it."""

    call: Call
    attempt: Attempt
    replica: Replica
    tokens: int = 0
    error: AttemptError | None = None
    last_sign_at: float = -1.0
    """When a token or the proper end of the answer came last."""
    in_flight: bool = True

    @property
    def prompt_left(self) -> int:
        """Return the prompt tokens that are not known to be done."""
        return 0 if self.tokens else self.call.work.prompt_tokens

    @property
    def output_left(self) -> int:
        """Return the output tokens that are still expected."""
        return max(0, self.call.work.output_tokens - self.tokens)


class Bottom:
    """Carries attempts to the modelled replicas, by address."""

    def __init__(self, trace: Trace) -> None:
        self.replicas: dict[str, ModelReplica] = {}
        self.in_flight: list[InFlight] = []
        self.made: list[InFlight] = []
        """Every attempt ever, in order."""
        self._trace = trace

    async def __call__(self, call: Call, /) -> tuple[int, ...]:
        """Return all tokens of the answer.

        Raises:
            AttemptError: with how far it got.
        """
        attempt, ask = call.attempt, call.payload
        assert isinstance(ask, Ask)
        assert attempt is not None
        assert attempt.replica is not None
        record = InFlight(call, attempt, attempt.replica)
        self.in_flight.append(record)
        self.made.append(record)
        replica = self.replicas[attempt.replica.address]
        stream = replica.connect(ask.plan, ask.start, ask.limit)
        try:
            return await self._relay(record, ask, stream)
        except AttemptError as error:
            error.reached = attempt.progress.reached
            record.error = error
            raise
        finally:
            self.in_flight.remove(record)
            record.in_flight = False
            replica.close(stream, lambda: self._straggle(attempt))

    async def _relay(self, record: InFlight, ask: Ask, stream: Stream) -> tuple[int, ...]:
        progress, output = record.attempt.progress, ask.output
        tokens = list(ask.prefix)
        while True:
            item = await stream.take()
            if item == END:
                record.last_sign_at = asyncio.get_running_loop().time()
                return tuple(tokens)
            if item == HEADERS:
                progress.headers()
                continue
            if isinstance(item, AttemptError):
                raise item
            assert isinstance(item, int)
            progress.tokens()
            record.tokens += 1
            record.last_sign_at = progress.last_at
            tokens.append(item)
            output.partial = tokens
            if record.tokens == 1:
                output.opened(record.call)
            if ask.plan.stream:
                progress.pause()
                await output.write(item)
                progress.resume()

    def _straggle(self, attempt: Attempt) -> None:
        """What a replica sent before it noticed that nobody reads: it may reach the attempt's own progress."""
        self._trace.note(
            f"straggler of attempt {attempt.number} on {attempt.replica and attempt.replica.name}"
        )
        attempt.progress.headers()
        attempt.progress.tokens()
