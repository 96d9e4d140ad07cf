"""Revokes an API key, with the command that an operator uses; the revert puts the file back as it was.

What its owner asks after that must be refused from the next request on, whether the answer would be computed or lies in
the cache. Proven from outside: a request with the key is refused with 401.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

from chaos.faults.base import FaultContext, FaultError, Proof, checked_settings
from chaos.names import require
from chaos.waiting import until

VERIFY_WITHIN_S: Final = 5.0
KEPT: Final = ".before-revocation"


class RevokeKey:
    """Revokes a key by the name that the experiment gives it."""

    kind: ClassVar[str] = "revoke_key"
    loses_replica: ClassVar[bool] = False

    def __init__(self, context: FaultContext, name: str, key_id: str, file: Path) -> None:
        self.target = name
        self._context = context
        self._key_id = key_id
        self._file = file
        self._kept = file.with_name(file.name + KEPT)

    @classmethod
    async def resolve(cls, context: FaultContext, target: str, settings: Mapping[str, float]) -> RevokeKey:
        checked_settings(cls.kind, settings, {})
        tenants = context.tenants
        if tenants.file is None:
            raise FaultError("revoke_key: the experiment has no tenants, so there is no key to revoke")
        require("key", target, [name for name in tenants.keys if name])
        return cls(context, target, tenants.key_id(target), tenants.file)

    @classmethod
    def restored(cls, context: FaultContext, data: Mapping[str, Any]) -> RevokeKey:
        return cls(context, str(data["name"]), str(data["key_id"]), Path(data["file"]))

    def undo_data(self) -> dict[str, Any]:
        return {"name": self.target, "key_id": self._key_id, "file": str(self._file)}

    async def inject(self) -> None:
        shutil.copy2(self._file, self._kept)
        ended = await self._context.substrate.gateway_command(
            "keys", "revoke", self._key_id, "--file", str(self._file)
        )
        if ended.code != 0:
            raise FaultError(f"revoke_key: {ended.errors.strip()[-300:]}")

    async def verify(self) -> Proof:
        seen: dict[str, Any] = {"key_id": self._key_id}
        headers = {"authorization": f"Bearer {self._context.tenants.keys.get(self.target, '')}"}
        url = f"{self._context.endpoints.base_url}/v1/models"

        async def refused() -> bool:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(2.0),
                    aiohttp.ClientSession() as session,
                    session.get(url, headers=headers) as response,
                ):
                    seen["status"] = response.status
            return seen.get("status") == 401

        return Proof(bool(await until(refused, VERIFY_WITHIN_S, 0.1)), seen)

    async def revert(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._kept, self._file)
