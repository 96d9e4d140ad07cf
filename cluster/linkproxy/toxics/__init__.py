"""The toxics by type. A new one is a file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cluster.linkproxy.stage import Toxic
from cluster.linkproxy.toxics.bandwidth import Bandwidth
from cluster.linkproxy.toxics.latency import Latency
from cluster.linkproxy.toxics.limit_data import LimitData
from cluster.linkproxy.toxics.noop import Noop
from cluster.linkproxy.toxics.reset_peer import ResetPeer
from cluster.linkproxy.toxics.slicer import Slicer
from cluster.linkproxy.toxics.slow_close import SlowClose
from cluster.linkproxy.toxics.timeout import Timeout

TOXICS: Final[Mapping[str, type[Toxic]]] = {
    "noop": Noop,
    "latency": Latency,
    "bandwidth": Bandwidth,
    "slow_close": SlowClose,
    "timeout": Timeout,
    "reset_peer": ResetPeer,
    "slicer": Slicer,
    "limit_data": LimitData,
}
