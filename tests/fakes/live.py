"""How tests look at a running local cluster from outside: its replicas, their processes, their metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import psutil

from cluster import public
from cluster.public import ClusterState

_T = TypeVar("_T")
Prompt = str | list[int]
"""Text, or token ids."""
GENERATED = "vllm:generation_tokens_total"


async def observed(what: str, look: Callable[[], Awaitable[_T]], bound_s: float = 60.0) -> _T:
    """Look until something true is seen and return it; fails by name after ``bound_s``."""
    deadline = time.monotonic() + bound_s
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            if seen := await look():
                return seen
        assert time.monotonic() < deadline, f"not seen within {bound_s:g} s: {what}"
        await asyncio.sleep(0.05)


@dataclass
class Answer:
    """What one streamed call brought: its token ids with their arrival, and how it ended."""

    status: int = 0
    token_ids: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    broken: str = ""

    def take(self, event: dict[str, Any]) -> None:
        """Add one event of the stream."""
        self.error = event.get("error", self.error)
        for choice in event.get("choices", ()):
            if ids := choice.get("token_ids"):
                self.token_ids += ids
                self.arrived.append(time.monotonic())
            self.finish_reason = choice["finish_reason"] or self.finish_reason


@dataclass(frozen=True)
class Replica:
    """One replica past every link, at its own port."""

    session: aiohttp.ClientSession
    link: str
    upstream: str

    @property
    def url(self) -> str:
        return f"http://{self.upstream}"

    async def metric(self, name: str) -> float:
        """Return the value of one of vLLM's metrics."""
        async with self.session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )

    async def stream(
        self, prompt: Prompt, max_tokens: int, answer: Answer | None = None, **more: Any
    ) -> Answer:
        """Stream a greedy completion to its end, whatever that is; ``answer`` can be watched meanwhile.

        ``more`` are further fields of the request.
        """
        answer = answer or Answer()
        body = self.body(prompt, max_tokens, stream=True, return_token_ids=True, **more)
        try:
            async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
                answer.status = response.status
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        answer.take(json.loads(line[6:]))
        except aiohttp.ClientError as error:
            answer.broken = repr(error)
        return answer

    async def complete(self, prompt: Prompt, max_tokens: int) -> tuple[int, dict[str, Any]]:
        """Ask without a stream; return status and body."""
        async with self.session.post(
            f"{self.url}/v1/completions", json=self.body(prompt, max_tokens, stream=False)
        ) as response:
            return response.status, await response.json()

    def body(self, prompt: Prompt, max_tokens: int, **more: Any) -> dict[str, Any]:
        """Return a greedy request."""
        return {
            "model": public.MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }

    def process(self) -> psutil.Process:
        """Return the process that listens on the replica's port."""
        port = int(self.upstream.rsplit(":", 1)[1])
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return psutil.Process(connection.pid)
        raise AssertionError(f"nobody listens on {self.upstream}")

    def engine_core(self) -> psutil.Process:
        """Return its EngineCore: the child with the most memory."""
        children = self.process().children()
        assert children, f"{self.link} has no child process"
        return max(children, key=lambda child: child.memory_info().rss)


@dataclass(frozen=True)
class Live:
    """The running cluster as tests see it."""

    session: aiohttp.ClientSession
    state: ClusterState

    async def links(self, kind: str) -> list[dict[str, Any]]:
        """Return the links of a kind as the links service tells them."""
        async with self.session.get(f"{self.state.links_url}/links") as response:
            return [link for link in (await response.json())["links"] if link["kind"] == kind]

    async def replicas(self) -> list[Replica]:
        """Return the live replicas by label."""
        links = sorted(await self.links("replica"), key=lambda link: str(link["label"]))
        return [Replica(self.session, link["name"], link["upstream"]) for link in links]

    async def whole(self, without: str = "") -> list[Replica]:
        """Wait until every replica is there, none of them the link ``without``, and each gives tokens."""

        async def all_listed() -> list[Replica]:
            found = await self.replicas()
            complete = len(found) == self.state.replicas and without not in {one.link for one in found}
            return found if complete else []

        found = await observed("all replicas are listed", all_listed, bound_s=180)
        for replica in found:
            answer = await replica.stream("hello", 2)
            assert answer.finish_reason == "length", f"{replica.link} gives no tokens: {answer}"
        return found


@contextlib.asynccontextmanager
async def look_at(state: ClusterState) -> AsyncIterator[Live]:
    """A view of the cluster with connections of its own."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Live(session, state)


async def gone(process: psutil.Process, bound_s: float = 30.0) -> None:
    """Return when the process has ended (a zombie has)."""

    async def ended() -> bool:
        try:
            return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    await observed(f"process {process.pid} ends", ended, bound_s)
