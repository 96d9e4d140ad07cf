"""A closed loop that keeps every slot full: so many callers, each of which sends its next call when one has ended.

What is measured lies in a window in which all of them have a call open: from when as many calls have ended as there are
callers, to when the first caller finds no further one. Before it the batches run in lockstep, because all began at
once, and after it the slots are no longer full.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from chaos.experiment import Load
from chaos.history import CallRecord
from chaos.load.answer import ANSWERED
from chaos.load.client import LoadClient
from chaos.load.prompts import Ask, ask
from tests.bench.ratios import Sample

CALL_BOUND_S = 60.0
"""After which a call is given up, and the arm has not answered it."""


class NothingMeasuredError(RuntimeError):
    """An arm never had every caller at work, or answered nothing meanwhile; the text says what came instead."""


def asks(seed: int, count: int, prompt_tokens: tuple[int, int], output_tokens: tuple[int, int]) -> list[Ask]:
    """Return the calls of a seed, all of them streams; lengths differ, so that the batches do not run in lockstep."""
    load = Load(share=1.0, prompt_tokens=prompt_tokens, output_tokens=output_tokens, stream_share=1.0)
    return [ask(load, f"bench-{seed}", number) for number in range(count)]


def cpu_clock(pid: int) -> Callable[[], float]:
    """Return a function that gives the seconds of CPU time that a process and its children have used."""
    process = psutil.Process(pid)

    def read() -> float:
        spent = 0.0
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                spent += times.user + times.system
        return spent

    return read


@dataclass(frozen=True, slots=True)
class Route:
    """Where calls go: a caller stays with its URL, or calls take the URLs in turn."""

    urls: tuple[str, ...]
    in_turn: bool = False

    def url(self, caller: int, call: int) -> str:
        return self.urls[(call if self.in_turn else caller) % len(self.urls)]


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of CPU time of the whole machine: all there was, and what nobody used."""

    all_s: float
    idle_s: float

    @classmethod
    def now(cls) -> Machine:
        times = psutil.cpu_times()
        return cls(sum(times[:8]), times.idle + times.iowait)  # the rest counts guests a second time

    def since(self, before: Machine) -> Machine:
        return Machine(self.all_s - before.all_s, self.idle_s - before.idle_s)


class _Window:
    """When the slots were full, and what the CPU clocks said at both ends."""

    def __init__(self, callers: int, cpu: Callable[[], float] | None) -> None:
        self._warming = callers
        self._cpu = cpu
        self.begin_at: float | None = None
        self.end_at: float | None = None
        self._cpu_s = 0.0
        self._machine = Machine.now()

    def ended(self) -> None:
        self._warming -= 1
        if not self._warming and self.end_at is None:
            self.begin_at, self._cpu_s, self._machine = time.time(), self._read(), Machine.now()

    def ran_out(self) -> None:
        if self.end_at is None:
            self.end_at, self._cpu_s = time.time(), self._read() - self._cpu_s
            self._machine = Machine.now().since(self._machine)

    def _read(self) -> float:
        return 0.0 if self._cpu is None else self._cpu()

    @property
    def cpu_s(self) -> float | None:
        return None if self._cpu is None else self._cpu_s

    @property
    def idle(self) -> float:
        return self._machine.idle_s / self._machine.all_s if self._machine.all_s else 0.0


async def measure(
    arm: str,
    route: Route,
    callers: int,
    model: str,
    calls: Sequence[Ask],
    cpu: Callable[[], float] | None = None,
) -> Sample:
    """Make the calls, ``callers`` of them at a time.

    Raises:
        NothingMeasuredError: there was no window, or no token in it.
    """
    window, left, records = _Window(callers, cpu), iter(enumerate(calls)), list[CallRecord]()
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            url: await stack.enter_async_context(LoadClient(url, model, CALL_BOUND_S)) for url in route.urls
        }

        async def caller(own: int) -> None:
            for number, asked in left:
                client = clients[route.url(own, number)]
                sent_at = time.time()
                records.append(
                    await client.call(asked, arm, number, 0.0, sent_at, f"bench-{arm}-{number:05d}")
                )
                window.ended()
            window.ran_out()

        async with asyncio.TaskGroup() as group:
            for own in range(callers):
                group.create_task(caller(own))
    if window.begin_at is None or window.end_at is None:
        raise NothingMeasuredError(f"{arm}: {len(calls)} calls are too few to keep {callers} callers at work")
    found = sample(arm, records, window.begin_at, window.end_at, window.cpu_s)
    return replace(found, idle=window.idle)


def sample(
    arm: str, records: Sequence[CallRecord], begin_at: float, end_at: float, cpu_s: float | None = None
) -> Sample:
    """Return what the records say of the window. A chunk may carry several tokens: each counts as its share.

    Raises:
        NothingMeasuredError: no token came in the window.
    """
    tokens, ended, unwhole, ttft_s = 0.0, 0, 0, list[float]()
    for one in records:
        length = _length(one)
        unwhole += length < one.max_tokens
        if not length or one.first_token_at is None:
            continue
        tokens += sum(begin_at <= at < end_at for at in one.token_at) * length / len(one.token_at)
        ended += begin_at <= one.ended_at < end_at
        if begin_at <= one.sent_at < end_at:
            ttft_s.append(one.first_token_at - one.sent_at)
    if not tokens or not ended or not ttft_s:
        why = next(
            (f"{one.outcome}: {one.error_type} {one.error}" for one in records if not _length(one)), ""
        )
        raise NothingMeasuredError(f"{arm}: nothing was answered while every caller was at work ({why})")
    return Sample(arm, end_at - begin_at, tokens, ended, tuple(ttft_s), unwhole, cpu_s)


def _length(record: CallRecord) -> int:
    """Return how many tokens an answer has; 0 when it failed.

    The engine was told to go on to the limit, so that an answer which has ended well has as many tokens as were asked
    for. Its usage may say more: a gateway may count anew, with another tokenizer.
    """
    if record.outcome in ANSWERED:
        return record.output_tokens
    counted_anew = record.error_type == "wrong_length" and record.output_tokens > record.max_tokens
    return record.max_tokens if counted_anew and record.done and record.token_at else 0
