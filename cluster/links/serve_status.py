"""Reads Ray Serve's REST answer (``GET /api/serve/applications/``) into what the links service needs.

Two traps of the answer. For an application without a running replica it lists Serve's own proxy as the target.
And when the dashboard cannot find Serve's controller, for lack of Serve or for a hiccup of Ray's store, it
answers 200 with an empty document: that is no list without replicas, it is no list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, Field, ValidationError

APP_LLM: Final = "llm"
APP_SMALL: Final = "llm-small"
APP_TOOL: Final = "tool"
_REPLICA_PREFIX: Final = "SERVE_REPLICA::"
_RUNNING: Final = "RUNNING"
_RECOVERING: Final = "RECOVERING"
_STOPPED: Final = "STOPPED"


class ServeStatusError(ValueError):
    """The answer is not of the form that Ray Serve 2.60 gives."""


@dataclass(frozen=True, slots=True)
class Target:
    """One running replica and where it listens."""

    app: str
    replica_id: str
    upstream: str
    """``host:port``."""


@dataclass(frozen=True, slots=True)
class ServeStatus:
    """What Ray Serve says of its replicas at one moment."""

    known: bool
    """False when the answer came without a controller: it says nothing about replicas."""
    running: tuple[Target, ...] = ()
    """Replicas that take traffic, in the order of the answer."""
    recovering: frozenset[str] = frozenset()
    """Ids of replicas that a restarted controller has yet to find again; they go on serving."""
    present: frozenset[str] = frozenset()
    """Ids of all replicas that Serve has not let go, draining ones too."""
    settled: bool = False
    """All replicas run: no change is under way."""


class _Target(BaseModel):
    ip: str
    port: int = Field(ge=1, le=65535)
    name: str


class _Group(BaseModel):
    targets: list[_Target]
    protocol: str = "HTTP"
    app_name: str = ""


class _Replica(BaseModel):
    replica_id: str
    state: str


class _Deployment(BaseModel):
    replicas: list[_Replica] = []


class _Application(BaseModel):
    deployments: dict[str, _Deployment] = {}


class _Answer(BaseModel):
    controller_info: dict[str, object] = {}
    applications: dict[str, _Application] = {}
    target_groups: list[_Group] = []


def parse(answer: bytes, *, host: str | None = None) -> ServeStatus:
    """Read the answer's body.

    Args:
        answer: JSON as Ray sent it.
        host: if given, the host of every upstream. A local replica listens on loopback, while Ray names the
            machine's address, on which nothing listens.

    Raises:
        ServeStatusError: it is not such an answer.
    """
    try:
        read = _Answer.model_validate_json(answer)
    except ValidationError as error:
        raise ServeStatusError(f"unexpected answer of Ray Serve's REST API: {error}") from error
    if not read.controller_info:
        return ServeStatus(known=False)
    running: dict[tuple[str, str], Target] = {}
    for group in read.target_groups:
        if group.protocol != "HTTP":
            continue
        for target in group.targets:
            if target.name.startswith(_REPLICA_PREFIX):
                replica_id = target.name.rpartition("#")[2]
                place = host or target.ip
                upstream = f"[{place}]:{target.port}" if ":" in place else f"{place}:{target.port}"
                running[group.app_name, replica_id] = Target(group.app_name, replica_id, upstream)
    replicas = [
        replica
        for application in read.applications.values()
        for deployment in application.deployments.values()
        for replica in deployment.replicas
    ]
    return ServeStatus(
        known=True,
        running=tuple(running.values()),
        recovering=frozenset(replica.replica_id for replica in replicas if replica.state == _RECOVERING),
        present=frozenset(replica.replica_id for replica in replicas if replica.state != _STOPPED),
        settled=bool(replicas) and all(replica.state == _RUNNING for replica in replicas),
    )
