"""Other gateways, run as their own commands before the same links of the same replicas.

They live in a virtual environment of their own (``make bench-peers``), because none of them shares our pins. One that
is not installed is named and left out. To add one, add a line to ``PEERS``: its command, and what it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench.stand import NoStandError
from tests.ports import free_ports

VENV_VARIABLE: Final = "BROWNOUT_PEERS_VENV"
VENV: Final = ".venv-peers"
READY_BOUND_S: Final = 90.0
"""An interpreter that imports much, on a machine that is at work, needs tens of seconds."""
STOP_BOUND_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a peer is told: where to listen, what to send to, and a folder for its files."""

    port: int
    metrics_port: int
    replicas: Sequence[str]
    model: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway of somebody else."""

    name: str
    arguments: Callable[[Place], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)


def _vllm_router(place: Place) -> list[str]:
    listens = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.metrics_port)]
    return ["--worker-urls", *place.replicas, "--policy", "round_robin", *listens, "--log-level", "warning"]


def _smg(place: Place) -> list[str]:
    listens = ["--host", "127.0.0.1", "--port", str(place.port), "--prometheus-port", str(place.metrics_port)]
    sends = ["--worker-urls", *place.replicas, "--policy", "round_robin", "--backend", "vllm"]
    return ["launch", *sends, "--disable-tokenizer-autoload", *listens, "--log-level", "warn"]


def _litellm(place: Place) -> list[str]:
    models = [
        {
            "model_name": place.model,
            "litellm_params": {
                "model": f"hosted_vllm/{place.model}",
                "api_base": f"{url}/v1",
                "api_key": "none",
            },
        }
        for url in place.replicas
    ]
    config = place.folder / "litellm.json"  # YAML is asked for, and JSON is YAML
    config.write_text(
        json.dumps({"model_list": models, "router_settings": {"routing_strategy": "least-busy"}})
    )
    return ["--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)]


PEERS: Final = (
    Peer("vllm-router", _vllm_router),
    Peer("smg", _smg),
    Peer(
        "litellm",
        _litellm,
        {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it first asks a host outside for prices
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # it listens on loopback only
        },
    ),
)
"""All of them pass on what the engine understands and stream what it says; the first two are compiled."""


def program(peer: Peer, venv: Path | None) -> str | None:
    """Return the path of a peer's command: in the environment that was named, in its usual place, on the PATH."""
    named = venv or (Path(os.environ[VENV_VARIABLE]) if os.environ.get(VENV_VARIABLE) else None)
    if named is not None:
        return shutil.which(peer.name, path=str(named.absolute() / "bin"))
    return shutil.which(peer.name, path=str(Path(VENV).absolute() / "bin")) or shutil.which(peer.name)


@contextlib.asynccontextmanager
async def running(
    peer: Peer,
    command: str,
    replicas: Sequence[str],
    model: str,
    folder: Path,
    session: aiohttp.ClientSession,
) -> AsyncIterator[tuple[str, int]]:
    """Start a peer; give its root URL and its process id once a call through it is answered whole, and end it after.

    Raises:
        NoStandError: it ended by itself or did not answer in time; the text has the end of its log.
    """
    port, metrics_port = free_ports(2)
    arguments = peer.arguments(Place(port, metrics_port, replicas, model, folder))
    url, log = f"http://127.0.0.1:{port}", folder / f"{peer.name}.log"
    with log.open("wb") as out:
        child = await asyncio.create_subprocess_exec(
            command, *arguments, env={**os.environ, **peer.environment}, stdout=out, stderr=out
        )
    try:
        ends_at = time.monotonic() + READY_BOUND_S
        while not await _answers(session, url, model):
            if child.returncode is not None or time.monotonic() > ends_at:
                said = log.read_text(errors="replace")[-600:]
                state = "does not answer" if child.returncode is None else f"ended with {child.returncode}"
                raise NoStandError(f"{peer.name} {state}; the end of its log:\n{said}")
            await asyncio.sleep(0.2)
        yield url, child.pid
    finally:
        await _end(child)


async def _answers(session: aiohttp.ClientSession, url: str, model: str) -> bool:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "ready"}],
        "max_tokens": 1,
        "stream": True,
    }
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        timeout = aiohttp.ClientTimeout(total=10)
        async with session.post(f"{url}/v1/chat/completions", json=body, timeout=timeout) as response:
            return response.status == 200 and b"[DONE]" in await response.read()
    return False


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.terminate()
        try:
            async with asyncio.timeout(STOP_BOUND_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
