"""``python -m tests.fakes.stand``: fake replicas, links and tool, to run a gateway in front of by hand."""

from __future__ import annotations

import argparse
import asyncio

from tests.fakes.links import FakeLinks
from tests.fakes.replica import Behaviour, FakeReplica
from tests.fakes.tool import fake_tool


async def stand(links_port: int, replicas: int, token_interval_s: float) -> None:
    """Serve until it is cancelled."""
    fakes = [FakeReplica() for _ in range(replicas)]
    for fake in fakes:
        fake.behaviour = Behaviour(token_interval_s=token_interval_s)
        await fake.start()
    links = FakeLinks()
    await links.start(links_port)
    async with fake_tool() as tool:
        await links.set(
            ((f"replica-{n}.fake", fake.address) for n, fake in enumerate(fakes)), tool=tool.address
        )
        print(f"links at {links.url}, {replicas} replicas, a token every {token_interval_s:g} s", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links-port", type=int, default=8083)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--token-interval-s", type=float, default=0.03)
    wanted = parser.parse_args()
    asyncio.run(stand(wanted.links_port, wanted.replicas, wanted.token_interval_s))


if __name__ == "__main__":
    main()
