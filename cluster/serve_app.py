"""Deploys the Ray Serve applications: ``llm`` (the replicas), ``tool``, and ``llm-small`` where it is wanted.

``python -m cluster.serve_app [--wait]`` connects to the running Ray, hands the deployments over and exits:
from then on Serve's controller keeps them alive, and this process is not needed.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from cluster import public, ray_node
from cluster.served import Size
from cluster.settings import Settings, SettingsError, current

if TYPE_CHECKING:
    from ray.serve.api import RunTarget

APP_LLM: Final = "llm"
APP_SMALL: Final = "llm-small"
APP_TOOL: Final = "tool"
NO_LIMIT: Final = 100_000
"""``max_ongoing_requests``: work is bounded in the engine and the gateway. A bound here would make the
replica's ``/metrics`` and ``/health`` wait behind generation."""
CONNECT_TIMEOUT_S: Final = 5.0
DRAIN_S: Final = 7.0
HEALTH_CHECK_PERIOD_S: Final = 1.0
HEALTH_CHECK_TIMEOUT_S: Final = 10.0
"""Long enough that a busy replica is not taken for a dead one; a dead engine ends its replica by itself."""


class DeployError(RuntimeError):
    """The applications could not be deployed; the text says why."""


def _common() -> dict[str, Any]:
    return {
        "max_ongoing_requests": NO_LIMIT,
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
        "graceful_shutdown_timeout_s": DRAIN_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "logging_config": {"enable_access_log": False},
    }


def targets(settings: Settings) -> list[RunTarget]:
    """Return what Serve is to run."""
    from ray import serve
    from ray.serve.api import RunTarget

    from cluster.replica import Replica
    from cluster.tool.deployment import Tool

    def engines(count: int, size: Size) -> Any:
        return (
            serve.deployment(Replica)
            .options(
                num_replicas=count,
                ray_actor_options={"num_cpus": 0, "resources": {ray_node.RESOURCE_REPLICA: 1}},
                **_common(),
            )
            .bind(settings.model_dump(mode="json", exclude={"store"}), size)  # it may hold a password
        )

    tool = serve.deployment(Tool).options(
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": {ray_node.RESOURCE_HEAD: 0.1}},
        **_common(),
    )
    found = [
        RunTarget(engines(settings.replicas, "full"), name=APP_LLM, route_prefix="/"),
        RunTarget(tool.bind(settings.bind_host), name=APP_TOOL, route_prefix=public.TOOL_PATH),
    ]
    if settings.small_replicas:
        small = engines(settings.small_replicas, "small")
        found.append(RunTarget(small, name=APP_SMALL, route_prefix=public.SMALL_PATH))
    return found


def deploy(settings: Settings) -> None:
    """Hand the applications to Serve; returns before their replicas are ready.

    Raises:
        DeployError: Ray is not there.
    """
    import ray
    from ray import serve

    address = f"{settings.ray_host}:{settings.port_ray_gcs}"
    try:
        # Ray itself would try for minutes, and say so only in its own log.
        socket.create_connection((settings.ray_host, settings.port_ray_gcs), CONNECT_TIMEOUT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError) as error:
        raise DeployError(f"no Ray at {address} ({error}); start the cluster first") from error
    # Serve insists on a proxy of its own on the head; it is out of everybody's way, and unused.
    serve.start(http_options={"host": settings.bind_host, "port": settings.port_ingress - 1})
    serve.run_many(
        targets(settings), wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )


def wait_until_running(settings: Settings, timeout_s: float, poll_s: float = 0.25) -> None:
    """Return when the applications run with all their replicas.

    Raises:
        DeployError: one failed, or the time ran out; with what Serve says about it.
    """
    from ray import serve

    wanted = (APP_LLM, APP_TOOL, APP_SMALL) if settings.small_replicas else (APP_LLM, APP_TOOL)
    deadline = time.monotonic() + timeout_s
    while True:
        applications = serve.status().applications
        states = {name: applications[name] for name in wanted if name in applications}
        if len(states) == len(wanted) and all(state.status == "RUNNING" for state in states.values()):
            return
        for name, state in states.items():
            if state.status == "DEPLOY_FAILED":
                raise DeployError(f"application {name} failed to start: {_reason(state)}")
        if time.monotonic() > deadline:
            seen = "; ".join(f"{name}: {state.status} {_reason(state)}" for name, state in states.items())
            raise DeployError(f"not ready after {timeout_s:g} s: {seen}")
        time.sleep(poll_s)


def _reason(state: Any) -> str:
    messages = [state.message, *(deployment.message for deployment in state.deployments.values())]
    return " ".join(message for message in messages if message)


def main() -> int:
    """Deploy; exit code 3 and one line on stderr when that fails."""
    parser = argparse.ArgumentParser(prog="python -m cluster.serve_app", description=__doc__)
    parser.add_argument("--wait", action="store_true", help="return only when every replica is ready")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="longest wait (default: 300)")
    options = parser.parse_args()
    try:
        settings = current()
        os.environ.update(ray_node.environment(settings))
        deploy(settings)
        if options.wait:
            wait_until_running(settings, options.timeout_s)
    except (DeployError, SettingsError) as error:
        print(f"serve_app: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
