"""Two gateways on one store: a tenant has its quota once, whichever of them it asks (faults 7 and 22)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from cluster.gateway import quotas
from tests.fakes.gateway import Rig, rig
from tests.fakes.replica import MODEL
from tests.fakes.tenants import TenantsFile

LIMIT = 40
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 1}


async def test_parallel_requests_to_two_gateways_share_one_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "store_now", lambda connection: 1_000_020.0)  # the first second of a minute
    file = TenantsFile(tmp_path / "tenants.toml")
    file.more["acme"] = f"[tenants.acme.quotas]\nrequests_per_minute = {LIMIT}\n"
    file.write()
    store, named = tmp_path / "store.db", str(file.path)

    async def status(made: Rig) -> int:
        async with made.http.post(f"{made.url}/v1/completions", json=BODY, headers=file.bearer()) as response:
            await response.read()
            return response.status

    async with (
        rig(1, store=store, tenants_file=named) as one,
        rig(1, store=store, tenants_file=named) as other,
    ):
        statuses = Counter(
            await asyncio.gather(*(status(made) for made in (one, other) for _ in range(LIMIT)))
        )
        assert set(statuses) == {200, 429}
        assert statuses[200] <= LIMIT
        assert statuses[200] >= LIMIT - LIMIT // 20, "at most a block is left with the other gateway"
        assert len(one.replicas[0].seen) + len(other.replicas[0].seen) == statuses[200]
