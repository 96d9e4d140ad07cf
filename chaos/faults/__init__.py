"""The faults, one a module. To add one, copy ``noop.py`` and add one line to ``FAULTS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.faults.base import BlastRadius, Fault, FaultContext, FaultError, Proof
from chaos.faults.burst import Burst
from chaos.faults.freeze_replica import FreezeReplica
from chaos.faults.kill_gateway import KillGateway
from chaos.faults.kill_replica import KillReplica
from chaos.faults.latency import Latency
from chaos.faults.new_revision import NewRevision
from chaos.faults.noop import Noop
from chaos.faults.revoke_key import RevokeKey
from chaos.faults.store_down import StoreDown
from chaos.faults.tool_lose_answer import ToolLoseAnswer

__all__ = ["FAULTS", "BlastRadius", "Fault", "FaultContext", "FaultError", "Proof"]

FAULTS: Final[Mapping[str, type[Fault]]] = {
    "noop": Noop,
    "kill_replica": KillReplica,
    "freeze_replica": FreezeReplica,
    "latency": Latency,
    "burst": Burst,
    "kill_gateway": KillGateway,
    "store_down": StoreDown,
    "tool_lose_answer": ToolLoseAnswer,
    "revoke_key": RevokeKey,
    "new_revision": NewRevision,
}
"""By the name that scenarios use."""
