"""Gives an answer of before to one caller: at once where it is fresh, or as the rung ``cached`` of the ladder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.gateway.answer import Answer
from cluster.gateway.assemble import whole_answer
from cluster.gateway.exchange import Exchange
from cluster.gateway.generation import Api, Receiver
from cluster.gateway.replay import chunks_of, events_of
from policies.answer_store import Kept
from policies.call import Call
from policies.errors import RungMissed
from policies.ladder import CACHED


@dataclass(frozen=True, slots=True)
class Recall:
    """How a caller wants an answer to be told."""

    api: Api
    request_id: str
    stream: bool
    want_usage: bool

    async def give(self, exchange: Exchange, kept: Kept, note: Mapping[str, Any]) -> None:
        """Send an answer, whole or as a stream; ``note`` is its extension field ``brownout``, where it has one."""
        chunks, usage = chunks_of(self.api, kept.body, self.request_id)
        if self.stream:
            await exchange.start_stream()
            await exchange.end(events_of(chunks, usage, want_usage=self.want_usage, note=note))
            return
        whole = whole_answer(self.api, chunks, usage)
        if note:
            whole["brownout"] = dict(note)
        await exchange.json(200, json.dumps(whole, ensure_ascii=False).encode())


@dataclass(frozen=True, slots=True)
class Earlier:
    """An answer past its freshness, as the payload of a call at the rung ``cached``.

    ``judged`` looks at it again and returns it, or None where it may no longer be given.
    """

    recall: Recall
    judged: Callable[[], Kept | None]
    receiver: Receiver

    async def answer(self, call: Call) -> Answer:
        """Hand the answer to whoever waits for the call's.

        Raises:
            RungMissed: it may no longer be given.
        """
        kept = self.judged()
        if kept is None:
            raise RungMissed("the answer of before is past use, or its caller may no longer see it")
        recall = self.recall
        chunks, usage = chunks_of(recall.api, kept.body, recall.request_id)
        self.receiver.opened(call)
        if recall.stream:
            note = {"rung": CACHED}
            await self.receiver.write(events_of(chunks, usage, want_usage=recall.want_usage, note=note))
        return Answer(usage=usage, chunks=tuple(chunks))


async def answer_earlier(call: Call) -> Answer:
    """Answer a call at the rung ``cached``; its payload is an :class:`Earlier`."""
    earlier = call.payload
    if not isinstance(earlier, Earlier):
        raise RungMissed("there is no answer of before")
    return await earlier.answer(call)
