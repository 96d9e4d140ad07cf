"""Whether a cluster is whole again: the lost replica is back and takes load, nothing is in flight, no toxic is left.

Each function observes within a bound and returns what it found with the evidence for it. ``None`` means that it
could not be found out, which no verdict may read as good.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from chaos.admin import Admin, AdminError
from chaos.links import LinkFaultError, LinkFaults
from chaos.load.answer import ANSWERED
from chaos.load.client import LoadClient
from chaos.load.prompts import Ask
from chaos.scrape import samples, total
from chaos.signals import replica_samples
from chaos.substrate import Substrate, SubstrateError
from chaos.waiting import until
from cluster.public import METRIC_HEADROOM, VLLM_RUNNING, VLLM_WAITING

PROBES_A_REPLICA = 2
CALM_HEADROOM = 0.6
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found; ``ok`` is None when it could not be found out."""

    ok: bool | None
    detail: dict[str, Any] = field(default_factory=dict)


async def serving(client: LoadClient, count: int) -> set[str]:
    """Send ``count`` small calls at once and return the links of the replicas that answered them in full."""

    async def one() -> str:
        n = next(_numbers)
        asked = Ask(f"probe {n}", max_tokens=2, stream=True)
        record = await client.call(asked, "", n, 0.0, time.time(), f"probe-{time.time_ns():x}-{n}")
        return record.replica if record.outcome in ANSWERED else ""

    return set(await asyncio.gather(*(one() for _ in range(count)))) - {""}


async def all_serving(
    admin: Admin, client: LoadClient, replicas: int, without: Collection[str], bound_s: float, poll_s: float
) -> Finding:
    """Wait until ``replicas`` links that are not in ``without`` exist and each has answered a small call.

    The detail has ``links``, ``serving``, and the moments ``listed_at`` and ``serving_at``.
    """
    ends_at = time.monotonic() + bound_s
    detail: dict[str, Any] = {}

    async def listed() -> list[str] | None:
        try:
            names = [link.name for link in await admin.replica_links() if link.name not in without]
        except AdminError as error:
            detail["error"] = str(error)
            return None
        detail["links"] = names
        return names if len(names) >= replicas else None

    if await until(listed, bound_s, poll_s) is None:
        return Finding(False, detail)
    detail["listed_at"] = time.time()
    served: set[str] = set()

    async def all_served() -> bool:
        served.update(await serving(client, replicas * PROBES_A_REPLICA))
        names = await listed()
        return bool(names) and served.issuperset(names or ())

    done = await until(all_served, max(1.0, ends_at - time.monotonic()), poll_s)
    detail["serving"] = sorted(served)
    detail["serving_at"] = time.time()
    return Finding(bool(done), detail)


async def calm(admin: Admin, bound_s: float, poll_s: float) -> Finding:
    """Wait until what the gateway was offered before does not weigh on what it does next.

    Offered work is averaged over some seconds, and policies go by it: an arm that begins right after a
    calibration, or after another arm's overload, would begin as if it were overloaded itself. A gateway that tells
    no headroom has nothing of that kind to forget.
    """
    last: dict[str, Any] = {}

    async def forgotten() -> bool:
        last.clear()
        try:
            page = await admin.text(f"{admin.endpoints.admin_url}/metrics")
        except AdminError as error:
            last["error"] = str(error)
            return False
        last["headroom"] = total(samples(page, {METRIC_HEADROOM}), METRIC_HEADROOM)
        return last["headroom"] is None or last["headroom"] >= CALM_HEADROOM

    done = await until(forgotten, bound_s, poll_s)
    return Finding(True if done else None, last)


async def nothing_in_flight(admin: Admin, bound_s: float, poll_s: float) -> Finding:
    """Wait until the gateway holds no call and no replica runs or queues a request."""
    last: dict[str, Any] = {}

    async def quiet() -> bool:
        last.clear()
        try:
            held = await admin.in_flight()
            pages = await replica_samples(admin)
        except AdminError as error:
            last["error"] = str(error)
            return False
        working = {
            link: sum(total(page, name) or 0.0 for name in (VLLM_RUNNING, VLLM_WAITING))
            for link, page in pages.items()
        }
        last.update(calls=held.calls, attempts=len(held.attempts), replicas=working)
        return held.calls == 0 and not held.attempts and not any(working.values())

    done = await until(quiet, bound_s, poll_s)
    return Finding(True if done else None if "error" in last else False, last)


async def no_toxic(toxiproxy_url: str) -> Finding:
    """Look whether any link still has a toxic."""
    try:
        async with LinkFaults(toxiproxy_url) as proxies:
            found = {link: [t.name for t in await proxies.toxics(link)] for link in await proxies.links()}
    except LinkFaultError as error:
        return Finding(None, {"error": str(error)})
    left = {link: toxics for link, toxics in found.items() if toxics}
    return Finding(not left, {"left": left} if left else {"links": len(found)})


async def no_leftovers(substrate: Substrate, bound_s: float, poll_s: float) -> Finding:
    """Wait until the substrate names nothing that an experiment must not leave."""
    last: list[str] = []

    async def clean() -> bool:
        last[:] = await substrate.leftovers()
        return not last

    try:
        done = await until(clean, bound_s, poll_s)
    except SubstrateError as error:
        return Finding(None, {"error": str(error)})
    return Finding(bool(done), {} if done else {"left": list(last)})
