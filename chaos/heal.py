"""Reverts what a run that died has left in force."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from chaos.admin import Admin, AdminError
from chaos.faults import FAULTS, FaultContext
from chaos.faults.kill_gateway import KillGateway
from chaos.substrate import GatewayHandle, NotRunningError, Substrate, SubstrateError
from chaos.tenants import discard
from chaos.undo import UndoEntry, UndoLog

PROFILE = "profile"
"""Kind of the entry that remembers the gateway's profile and its model's revision; no fault, but a run that died leaves
them changed as well."""
SETTINGS = "gateway_settings"
"""Kind of the entry that says that the gateway was started with an experiment's settings."""


@contextlib.asynccontextmanager
async def settings_lent(
    substrate: Substrate, undo: UndoLog, settings: Mapping[str, str], file: Path | None = None
) -> AsyncIterator[None]:
    """Have the gateway run with ``settings`` during the block, and as it was started after it; nothing without any.

    ``file`` is a tenants file that it goes by meanwhile. It is removed once no gateway needs it any more.
    """
    if not settings:
        yield
        return
    entry = undo.add(SETTINGS, substrate.name, "gateway", {"file": str(file) if file else ""})
    try:
        await substrate.configure_gateway(settings)
        yield
    finally:
        await substrate.configure_gateway({})
        _removed(undo, entry)


@contextlib.asynccontextmanager
async def profile_kept(admin: Admin, undo: UndoLog, substrate: str) -> AsyncIterator[None]:
    """Give the gateway its profile and revision back after the block; by :func:`heal`, should this process die."""
    (profile, without), revision = await admin.profile(), await admin.revision()
    data = {"profile": profile, "without": list(without), "revision": revision}
    entry = undo.add(PROFILE, substrate, "gateway", data)
    try:
        yield
    finally:
        with contextlib.suppress(AdminError):
            await _as_before(admin, data)
            undo.remove(entry)


async def heal(undo: UndoLog, substrate: Substrate) -> list[str]:
    """Revert every entry of ``substrate`` in the undo log and return them in words, oldest first.

    Where the cluster is not running any more its faults are gone with it, and only the log is cleared. The
    caller holds the run lock: else it could revert the fault of a run that is going on.

    Raises:
        SubstrateError: some could not be reverted; they stay in the log, and the others are reverted.
    """
    entries = [entry for entry in undo.entries() if entry.substrate == substrate.name]
    if not entries:
        return []
    healed: list[str] = []
    try:
        await _gateways_again(entries, substrate)
        endpoints = await substrate.endpoints()
    except NotRunningError:
        for entry in entries:
            _removed(undo, entry)
            healed.append(f"{entry.kind} on {entry.target}: gone with its cluster")
        return healed
    problems: list[str] = []
    async with Admin(endpoints) as admin:
        context = FaultContext(substrate, endpoints, admin)
        for entry in entries:
            if entry.kind not in (*FAULTS, PROFILE, SETTINGS):
                problems.append(
                    f"the undo log in {undo.folder} names the fault {entry.kind!r}, which this version does not "
                    f"know; revert it by hand and remove {entry.id}.json"
                )
                continue
            try:
                if entry.kind == PROFILE:
                    await _as_before(admin, entry.data)
                elif entry.kind == SETTINGS:
                    await substrate.configure_gateway({})
                else:
                    await FAULTS[entry.kind].restored(context, entry.data).revert()
            except Exception as error:
                problems.append(
                    f"{entry.kind} on {entry.target} is still in force and could not be reverted: {error}; "
                    f"'brownout heal' tries again"
                )
                continue
            _removed(undo, entry)
            healed.append(f"{entry.kind} on {entry.target}: reverted")
    if problems:
        raise SubstrateError("; ".join(problems))
    return healed


def _removed(undo: UndoLog, entry: UndoEntry) -> None:
    """Remove an entry that is reverted, and first the tenants file that only it needed."""
    if entry.kind == SETTINGS and entry.data.get("file"):
        discard(Path(entry.data["file"]))
    undo.remove(entry)


async def _as_before(admin: Admin, data: Mapping[str, Any]) -> None:
    await admin.set_profile(data["profile"], data["without"])
    if data.get("revision"):
        await admin.set_revision(data["revision"])


async def _gateways_again(entries: list[UndoEntry], substrate: Substrate) -> None:
    """Start every gateway that was killed: without one nobody can be asked where the rest of the cluster is."""
    for entry in entries:
        if entry.kind == KillGateway.kind:
            gateway = GatewayHandle(**entry.data["gateway"])
            if await substrate.gateway_is_dead(gateway):
                await substrate.start_gateway(gateway)
