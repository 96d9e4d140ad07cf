"""The crash matrix: at each named point of its life the gateway dies, and nothing is done twice.

Gateway and tool are processes of their own, and the gateway kills itself as ``kill -9`` does. Then clients send the
same keys until they have an answer, and what they were told is held against the tool's ledger, the store and the audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cluster.gateway.crash_points import POINTS
from tests.fakes.crash_check import check, replayed_alike, session
from tests.fakes.crash_stand import crash_stand
from tests.fakes.retrying import Final, Payment


async def each_point(store: str, folder: Path, points: Sequence[str]) -> None:
    answers: list[tuple[Payment, Final]] = []
    async with crash_stand(store, folder) as stand, session() as http:
        survivor = stand.gateway()
        await survivor.start()
        for number, point in enumerate(points):
            victim = await stand.armed(point)
            kinds = [(True, False), (True, True), (False, False), (False, True)]
            wanted = [Payment(f"{point}-{n}", *kind) for n, kind in enumerate(kinds)]
            sent = [asyncio.ensure_future(one.once(http, victim.url)) for one in wanted]
            early = await asyncio.gather(*sent)
            assert any(one.cut for one in wanted), f"nobody came by {point}: {wanted}"
            await victim.dies()
            urls = [survivor.url]
            if (
                number == 0
            ):  # the same gateway once more; for the other points another one takes up what it left
                await victim.start()
                urls = [victim.url]
            for payment, answer in zip(wanted, early, strict=True):
                final = await asyncio.wait_for(payment.until_final(http, *urls), 60)
                assert answer is None or answer.body == final.body
                answers.append((payment, final))
            await replayed_alike(http, answers[-len(wanted) :], survivor.url)
        unknown = await check(stand, answers, folder)
        assert unknown > 0, "those that the victims left open are told as unknown"


async def test_at_each_point_the_gateway_dies_and_nothing_is_done_twice(tmp_path: Path) -> None:
    await each_point(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, POINTS)


async def test_the_same_on_postgresql_around_the_effect(tmp_path: Path, postgres_url: str) -> None:
    await each_point(postgres_url, tmp_path, ("tool_asked", "tool_acted", "before_record", "after_record"))
