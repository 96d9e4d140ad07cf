"""What the parts of the links service tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReplicaKind = Literal["replica", "replica_small"]
Kind = Literal["client", "tool", "store", "replica", "replica_small"]
Outcome = Literal["done", "failed", "port_taken", "differs"]
"""Of an action: ``port_taken`` somebody else listens there, ``differs`` another proxy has that name."""


@dataclass(frozen=True, slots=True)
class ProxySeen:
    """A proxy as Toxiproxy tells it. Hosts to listen on are left out: it spells them in its own way."""

    port: int
    upstream: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link that works, as it is told to the gateway."""

    name: str
    label: str
    kind: Kind
    port: int
    upstream: str
    replica_id: str
    since: float
    """Unix seconds at which it was listed."""


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    port: int
    upstream: str


@dataclass(frozen=True, slots=True)
class Remove:
    name: str


Action = Create | Remove
