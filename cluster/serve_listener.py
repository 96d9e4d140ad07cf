"""Keeps the last listener of a Serve replica off the network.

Besides its HTTP port, each replica opens a gRPC server for calls between deployments. Serve has no setting for
its host: it listens on every interface, and what it receives is unpickled. Nothing here uses it, so on a
machine of its own (``local``) it is bound to loopback like everything else.
"""

from __future__ import annotations

import importlib
import ipaddress
from typing import Any


def is_loopback(host: str) -> bool:
    """Tell whether the host is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def keep_on(host: str) -> None:
    """Bind it to ``host`` when that is loopback; call it in a replica's constructor, before it listens."""
    if not is_loopback(host):
        return
    replica: Any = importlib.import_module("ray.serve._private.replica")
    bind = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: bind(server, address.replace("[::]", host))
