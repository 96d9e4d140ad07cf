"""What the containers ``head`` and ``worker`` run: ``python -m cluster.container head|worker``.

A container starts from a clean slate each time, also after ``docker kill`` and ``docker start``, when the files of
its earlier life are still there. The head is *ready* (its health check looks for the file) when every replica
answers; it stays so when replicas are lost later, because that is what experiments do.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from cluster import ray_node
from cluster.served import built_here
from cluster.settings import Settings, SettingsError, current

RAY_TEMP_DIR: Final = Path("/tmp/ray")
READY_FILE: Final = Path("/tmp/brownout-ready")
TOKEN_FILE: Final = Path.home() / ".ray" / "auth_token"
"""Lies on a volume that head, workers and the links service share: without it nobody can use this Ray."""
AGENT_PORT: Final = 52365
"""Where a worker's node answers its health check; Ray would choose a port by chance."""
HEAD_TIMEOUT_S: Final = 120.0
DEPLOY_ATTEMPTS: Final = 3


class ContainerError(RuntimeError):
    """The container cannot do its work; the text says why."""


def _say(text: str) -> None:
    print(f"container: {text}", flush=True)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: the kernel ends the rest of the container with its first process."""
    os._exit(128 + number)


def _await(what: str, ready: Callable[[], bool], ray: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while not ready():
        if ray is not None and ray.poll() is not None:
            raise ContainerError(f"ray ended with {ray.returncode} while waiting for {what}")
        if time.monotonic() > deadline:
            raise ContainerError(f"{what}: not after {HEAD_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def _dashboard_answers(settings: Settings) -> bool:
    try:
        with urllib.request.urlopen(f"{settings.dashboard_url}/api/version", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True  # it asks for the token: it is there
    except OSError:
        return False


def _gcs_answers(settings: Settings) -> bool:
    try:
        with socket.create_connection((settings.ray_host, settings.port_ray_gcs), timeout=2):
            return True
    except OSError:
        return False


def _make_token() -> None:
    """Write Ray's token once a volume; who may read it may use this Ray."""
    if TOKEN_FILE.exists():
        return
    TOKEN_FILE.parent.mkdir(parents=True, exist_ok=True)
    scratch = TOKEN_FILE.with_suffix(".new")
    scratch.write_text(secrets.token_hex(32))
    scratch.chmod(0o644)  # Prometheus reads it as another user
    scratch.replace(TOKEN_FILE)


def head(settings: Settings) -> int:
    """Run the Ray head, build the model, deploy, and stay until Ray ends; return its exit code."""
    READY_FILE.unlink(missing_ok=True)
    _make_token()
    # Ray wants its own address as a number; the others find the head by name.
    here = settings.model_copy(update={"ray_host": socket.gethostbyname(socket.gethostname())})
    env = ray_node.environment(here)
    ray = subprocess.Popen(["ray", *ray_node.head_arguments(here, RAY_TEMP_DIR, replicas=0)], env=env)
    if built_here(settings):
        subprocess.run([sys.executable, "-m", "cluster.model"], env=env, check=True)
    _await("the Ray head", lambda: _gcs_answers(here) and _dashboard_answers(here), ray)
    env["BROWNOUT_RAY_HOST"] = here.ray_host
    small = f", {settings.small_replicas} of the smaller model" if settings.small_replicas else ""
    _say(f"deploying {settings.replicas} replicas{small} and the tool")
    for attempt in range(1, DEPLOY_ATTEMPTS + 1):
        deploy = [sys.executable, "-m", "cluster.serve_app", "--wait"]
        if subprocess.run(deploy, env=env, check=False).returncode == 0:
            break
        if attempt == DEPLOY_ATTEMPTS:
            raise ContainerError(f"the applications could not be deployed in {DEPLOY_ATTEMPTS} attempts")
    READY_FILE.touch()
    _say("every replica answers")
    return ray.wait()


def worker(settings: Settings) -> NoReturn:
    """Join the head as a node that carries one replica; becomes Ray's own process."""
    _await(f"the Ray head at {settings.ray_host}", lambda: TOKEN_FILE.exists() and _gcs_answers(settings))
    agent = f"--dashboard-agent-listen-port={AGENT_PORT}"
    os.execvpe("ray", ["ray", *ray_node.worker_arguments(settings), agent], ray_node.environment(settings))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.container", description=__doc__)
    parser.add_argument("role", choices=("head", "worker"))
    role = parser.parse_args().role
    signal.signal(signal.SIGTERM, _leave)
    shutil.rmtree(RAY_TEMP_DIR, ignore_errors=True)
    try:
        settings = current()
        if role == "worker":
            worker(settings)
        return head(settings)
    except (ContainerError, SettingsError, subprocess.CalledProcessError) as error:
        print(f"container {role}: {error}", file=sys.stderr, flush=True)
        return 3


if __name__ == "__main__":
    sys.exit(main())
