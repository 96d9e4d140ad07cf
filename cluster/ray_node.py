"""How the processes of Ray are started: their environment and their arguments.

The local cluster and the container images start the same Ray. What they must agree on stands here once:
which variables the replicas inherit (a Ray worker gets the environment of the node that starts it), which
hosts are bound, and how large things may grow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cluster.serve_listener import is_loopback
from cluster.settings import Settings

PROJECT_ROOT: Final = Path(__file__).resolve().parent.parent
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""Nothing of size passes through Ray's object store; Ray accepts no less than 75 MB."""

RESOURCE_REPLICA: Final = "replica"
RESOURCE_HEAD: Final = "head"


def environment(settings: Settings, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the whole environment for ``ray start`` (head and worker) and for ``cluster.serve_app``.

    ``base`` (default: this process's environment) is kept, with its ``BROWNOUT_*`` variables; what is
    fixed here wins over it.
    """
    env = dict(os.environ if base is None else base)
    path = env.get("PYTHONPATH", "")
    if str(PROJECT_ROOT) not in path.split(os.pathsep):
        env["PYTHONPATH"] = f"{PROJECT_ROOT}{os.pathsep}{path}" if path else str(PROJECT_ROOT)
    env.update(
        # the engine: one process, one thread, no spinning
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL=env.get("VLLM_LOGGING_LEVEL", "WARNING"),
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        # Ray: says nothing to the outside, finds the cluster, does not make replicas yield to the gateway
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",
        RAY_ADDRESS=f"{settings.ray_host}:{settings.port_ray_gcs}",
        # Serve: each replica has a port of its own, and leaves quickly
        RAY_SERVE_ENABLE_DIRECT_INGRESS="1",
        RAY_SERVE_ENABLE_HA_PROXY="0",
        RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD="0",
        RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT=str(settings.port_ingress),
        RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT=str(settings.port_ingress + 500),
        RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S="2",
        RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS="1",
    )
    # An old variable that would override --kv-cache-memory-bytes.
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    if not settings.model:
        env["HF_HUB_OFFLINE"] = "1"
    if is_loopback(settings.ray_host):
        # Ray replaces a loopback address by the machine's own and listens on every interface, unless it is
        # told, in these words, that this node will never be joined by others.
        env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return env


def head_arguments(settings: Settings, temp_dir: Path, *, replicas: int) -> list[str]:
    """Return the arguments after ``ray`` that start the head.

    ``replicas`` is how many replicas may run on the head's own node: all of them in ``local``, 0 where
    each worker node carries one. ``temp_dir`` must be short: Ray puts Unix sockets below it, whose paths may
    not exceed 107 bytes.
    """
    resources = {RESOURCE_HEAD: 1} | ({RESOURCE_REPLICA: replicas} if replicas else {})
    return [
        "start",
        "--head",
        "--block",
        f"--port={settings.port_ray_gcs}",
        f"--ray-client-server-port={settings.port_ray_client}",
        # Said aloud so that a taken port is an error and not a head without a REST answer.
        "--include-dashboard=True",
        f"--dashboard-host={settings.bind_host}",
        f"--dashboard-port={settings.port_ray_dashboard}",
        f"--temp-dir={temp_dir}",
        f"--resources={json.dumps(resources)}",
        *_common(),
    ]


def worker_arguments(settings: Settings) -> list[str]:
    """Return the arguments after ``ray`` that start a worker node which carries one replica."""
    return [
        "start",
        "--block",
        f"--address={settings.ray_host}:{settings.port_ray_gcs}",
        f"--resources={json.dumps({RESOURCE_REPLICA: 1})}",
        *_common(),
    ]


def _common() -> list[str]:
    return [
        "--num-cpus=1",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
        "--include-log-monitor=False",
        "--dashboard-agent-listen-port=0",
        # Any free ports: Ray's default range could hold one of ours, and is refused where it does.
        "--min-worker-port=0",
        "--max-worker-port=0",
    ]
