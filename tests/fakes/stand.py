"""``python -m tests.fakes.stand``: fake replicas, links and tool, to run a gateway in front of by hand."""

from __future__ import annotations

import argparse
import asyncio

from tests.fakes.links import FakeLinks
from tests.fakes.paced_steps import PacedSteps
from tests.fakes.replica import Behaviour, FakeReplica
from tests.fakes.tool import fake_tool


async def stand(links_port: int, replicas: int, token_interval_s: float, slots: int = 0) -> None:
    """Serve until it is cancelled. With ``slots`` tokens come by paced steps, which take about that interval."""
    fakes = [FakeReplica() for _ in range(replicas)]
    for fake in fakes:
        if slots:
            fake.behaviour = Behaviour(steps=PacedSteps(slots, base_s=token_interval_s))
        else:
            fake.behaviour = Behaviour(token_interval_s=token_interval_s)
        await fake.start()
    links = FakeLinks()
    await links.start(links_port)
    async with fake_tool() as tool:
        await links.set(
            ((f"replica-{n}.fake", fake.address) for n, fake in enumerate(fakes)), tool=tool.address
        )
        print(
            f"links at {links.url}, {replicas} replicas, a token every {token_interval_s:g} s, "
            f"{slots or 'unbounded'} slots",
            flush=True,
        )
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links-port", type=int, default=8083)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--token-interval-s", type=float, default=0.03)
    parser.add_argument(
        "--slots", type=int, default=0, help="of a replica, with paced steps; 0 sets no bound"
    )
    wanted = parser.parse_args()
    asyncio.run(stand(wanted.links_port, wanted.replicas, wanted.token_interval_s, wanted.slots))


if __name__ == "__main__":
    main()
