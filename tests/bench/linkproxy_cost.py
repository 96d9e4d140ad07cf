"""``python -m tests.bench.linkproxy_cost``: what a link of the embedded proxy costs, in CPU time of its process.

Chunks the size of a token's event go over many connections at once, and then bulk data over two, without toxics
and with a latency. CPU time is the kernel's account of the link proxy's process alone; upstream and client are
in this one. Beside it, and in the same run, stands what this process needed for both of its ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import psutil

from tests.contract.toxiproxy import LinkUnderTest
from tests.fakes.tcp import tcp_server
from tests.ports import free_ports

CHUNK = b"data: " + b"t" * 190 + b"\n\n"
BLOCK = b"x" * 65536


@dataclass(frozen=True)
class Load:
    """So many connections, each of which receives ``count`` pieces of ``piece`` with a pause between them."""

    name: str
    connections: int
    count: int
    piece: bytes
    pause_s: float

    async def send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(self.count):
            writer.write(self.piece)
            await writer.drain()
            if self.pause_s:
                await asyncio.sleep(self.pause_s)

    async def receive(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        left = self.count * len(self.piece)
        while left:
            data = await reader.read(1 << 18)
            assert data, f"closed {left} bytes early"
            left -= len(data)
        writer.close()


LOADS = (
    Load("tokens", connections=40, count=100, piece=CHUNK, pause_s=0.033),
    Load("bulk", connections=2, count=2000, piece=BLOCK, pause_s=0),
)


@contextlib.asynccontextmanager
async def link_proxy(port: int) -> AsyncIterator[psutil.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cluster.linkproxy", "--port", str(port), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


def _cpu_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


async def measure(load: Load, proxy: psutil.Process, link: LinkUnderTest, toxics: str) -> None:
    own = psutil.Process()
    before, own_before, started = _cpu_s(proxy), _cpu_s(own), time.monotonic()
    await asyncio.gather(*(load.receive(link.port) for _ in range(load.connections)))
    wall_s = time.monotonic() - started
    cpu_s, own_s = _cpu_s(proxy) - before, _cpu_s(own) - own_before
    pieces = load.connections * load.count
    megabytes = pieces * len(load.piece) / 1e6
    print(
        f"{load.name:7} {toxics:8} {pieces:6} pieces {megabytes:7.1f} MB {wall_s:6.2f} s: link proxy "
        f"{cpu_s / pieces * 1e6:6.1f} us/piece {cpu_s / megabytes * 1e3:8.2f} ms/MB "
        f"({cpu_s / own_s:.2f} of what both ends needed)"
    )


async def main() -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with link_proxy(port) as proxy, aiohttp.ClientSession() as session:
        for load in LOADS:
            async with tcp_server(load.send) as upstream:
                link = await LinkUnderTest.create(session, url, load.name, upstream)
                await measure(load, proxy, link, "none")
                await link.add("latency", latency=50)
                await measure(load, proxy, link, "latency")


if __name__ == "__main__":
    asyncio.run(main())
