"""Reverts what a run that died has left in force."""

from __future__ import annotations

from chaos.admin import Admin
from chaos.faults import FAULTS, FaultContext
from chaos.substrate import NotRunningError, Substrate, SubstrateError
from chaos.undo import UndoLog


async def heal(undo: UndoLog, substrate: Substrate) -> list[str]:
    """Revert every fault of ``substrate`` in the undo log and return them in words, oldest first.

    Where the cluster is not running any more its faults are gone with it, and only the log is cleared. The
    caller holds the run lock: else it could revert the fault of a run that is going on.

    Raises:
        SubstrateError: one could not be reverted; it stays in the log.
    """
    entries = [entry for entry in undo.entries() if entry.substrate == substrate.name]
    if not entries:
        return []
    healed: list[str] = []
    try:
        endpoints = await substrate.endpoints()
    except NotRunningError:
        for entry in entries:
            undo.remove(entry)
            healed.append(f"{entry.kind} on {entry.target}: gone with its cluster")
        return healed
    async with Admin(endpoints) as admin:
        context = FaultContext(substrate, endpoints, admin)
        for entry in entries:
            if entry.kind not in FAULTS:
                raise SubstrateError(
                    f"the undo log in {undo.folder} names the fault {entry.kind!r}, which this version does not "
                    f"know; revert it by hand and remove {entry.id}.json"
                )
            try:
                await FAULTS[entry.kind].restored(context, entry.data).revert()
            except Exception as error:
                raise SubstrateError(
                    f"{entry.kind} on {entry.target} is still in force and could not be reverted: {error}; "
                    f"'brownout heal' tries again"
                ) from error
            undo.remove(entry)
            healed.append(f"{entry.kind} on {entry.target}: reverted")
    return healed
