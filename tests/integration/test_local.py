"""Bringing the local cluster up and down: what can be in the way, and that nothing is ever left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from cluster import processes
from cluster.bring_up import first_tokens
from cluster.public import ClusterState, ProcessRecord, claim_run_dir
from tests.fakes.second_cluster import local, run_dir_of, second_cluster


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """The environment of a second cluster, beside one that may be up; whatever it leaves is ended and told."""
    with second_cluster() as made:
        yield made


def until(what: str, observe: Callable[[], bool], bound_s: float = 90) -> None:
    ends_at = time.monotonic() + bound_s
    while not observe():
        assert time.monotonic() < ends_at, f"{what}: not within {bound_s:g} s"
        time.sleep(0.05)


def starting(env: dict[str, str], name: str) -> subprocess.Popen[str]:
    """Start ``up`` and return when it has started the process of that name."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.local", "up"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def started() -> bool:
        assert process.poll() is None, process.communicate()[0]
        state = ClusterState.load(run_dir_of(env))
        return state is not None and name in {record.name for record in state.processes}

    until(f"'{name}' started", started)
    return process


def test_a_taken_port_is_named_with_its_field_its_holder_and_the_mend(env: dict[str, str]) -> None:
    with closing(socket.create_server(("127.0.0.1", int(env["BROWNOUT_PORT_GATEWAY"])))):
        code, said = local("up", env)
    assert code == 3
    assert f"port {env['BROWNOUT_PORT_GATEWAY']} (port_gateway)" in said
    assert f"pid {os.getpid()}" in said
    assert "BROWNOUT_PORT_GATEWAY" in said
    assert ClusterState.load(run_dir_of(env)) is None


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("BROWNOUT_REPLICAS", "many", "BROWNOUT_REPLICAS: field 'replicas' has value 'many'"),
        ("BROWNOUT_PACE", "maybe", "BROWNOUT_PACE: field 'pace' has value 'maybe'"),
        ("BROWNOUT_REPLICA", "2", "unknown variable BROWNOUT_REPLICA: did you mean BROWNOUT_REPLICAS?"),
        ("BROWNOUT_CONFIG", "/nowhere/brownout.toml", "/nowhere/brownout.toml: cannot be read"),
    ],
)
def test_a_bad_setting_is_named_with_its_source(
    env: dict[str, str], variable: str, value: str, says: str
) -> None:
    code, said = local("up", {**env, variable: value})
    assert code == 4
    assert says in said


def test_a_bad_file_is_named_with_the_nearest_field(env: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "brownout.toml"
    config.write_text("replica = 2\n")
    code, said = local("up", {**env, "BROWNOUT_CONFIG": str(config)})
    assert code == 4
    assert f"{config}: unknown field 'replica': did you mean replicas" in said


def test_down_and_status_of_nothing_say_so(env: dict[str, str]) -> None:
    assert local("down", env) == (0, "down: nothing was running\n")
    code, said = local("status", env)
    assert code == 3
    assert "not running" in said


def test_a_run_folder_that_cannot_be_made_is_named(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, said = local("up", {**env, "BROWNOUT_RUN_DIR": str(tmp_path / "file" / "below")})
    assert code == 3
    assert "BROWNOUT_RUN_DIR" in said
    assert "Traceback" not in said


def test_a_folder_of_somebody_else_is_left_alone(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "precious").write_text("mine")
    with (tmp_path / "out.log").open("w") as out:
        stranger = subprocess.Popen(["sleep", "300"], stdout=out)
    try:
        for command in ("down", "up"):
            code, said = local(command, {**env, "BROWNOUT_RUN_DIR": str(tmp_path)})
            assert code == 3
            assert f"{tmp_path} holds something else" in said
        assert stranger.poll() is None
        assert (tmp_path / "r" / "precious").read_text() == "mine"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_proxy_in_the_environment_is_not_asked_for_what_is_on_this_machine(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = env["BROWNOUT_PORT_CLIENT"]
    answering = (
        "import http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "  def do_POST(s):\n"
        '    s.send_response(200); s.end_headers(); s.wfile.write(b\'{"choices":[{"text":"x"}]}\')\n'
        f"h.HTTPServer(('127.0.0.1', {port}), H).serve_forever()"
    )
    server = subprocess.Popen([sys.executable, "-c", answering], stderr=subprocess.DEVNULL)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    try:
        until(
            "an answer past the proxy",
            lambda: first_tokens(f"http://127.0.0.1:{env['BROWNOUT_PORT_CLIENT']}", "m"),
        )
    finally:
        server.kill()
        server.wait()


def test_what_an_earlier_run_left_is_ended_by_id_and_a_stranger_is_not(env: dict[str, str]) -> None:
    run_dir = run_dir_of(env)
    claim_run_dir(run_dir)
    orphan, record = processes.start("gateway", ["sleep", "300"], env, run_dir / "logs" / "gateway.log")
    stranger = subprocess.Popen(["sleep", "300"])
    created = psutil.Process(stranger.pid).create_time()
    state = ClusterState("local", "0" * 32, "http://127.0.0.1:9", "", "", "", "", "m", 3, "on")
    # A pid that was given to somebody else since: same number, other start time.
    reused = ProcessRecord("links", stranger.pid, created - 1000)
    dataclasses.replace(state, processes=(record, reused)).save(run_dir)
    try:
        # The port is taken so that nothing more than the clean-up happens.
        with closing(socket.create_server(("127.0.0.1", int(env["BROWNOUT_PORT_LINKS"])))):
            code, said = local("up", env)
        assert code == 3
        assert "only half alive: cleaning it up" in said
        assert orphan.wait(10) == -signal.SIGTERM
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.cluster
def test_a_second_up_finds_the_first(cluster: ClusterState) -> None:
    before = ClusterState.load()  # an experiment may have started its gateway again since the fixture looked
    code, said = local("up", dict(os.environ))
    assert code == 0
    assert f"already up: {cluster.base_url}/v1" in said
    assert ClusterState.load() == before


@pytest.mark.cluster
def test_two_at_a_time_do_not_end_each_others_processes(env: dict[str, str]) -> None:
    first = starting(env, "linkproxy")
    try:
        code, said = local("down", env)
        assert code == 3
        assert "another 'brownout up' or 'down' is at work" in said
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=90)


@pytest.mark.cluster
@pytest.mark.parametrize("at", ["linkproxy", "ray", "deploy"])
def test_ctrl_c_during_the_start_leaves_nothing(env: dict[str, str], at: str) -> None:
    process = starting(env, at)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 130, said
    assert "interrupted: taking down what was started" in said
    assert processes.belonging(run_dir_of(env)) == []
    assert ClusterState.load(run_dir_of(env)) is None


@pytest.mark.cluster
def test_after_kill_9_of_a_start_down_leaves_nothing(env: dict[str, str]) -> None:
    process = starting(env, "deploy")
    process.kill()
    process.communicate(timeout=30)
    assert processes.belonging(run_dir_of(env))
    code, said = local("down", env)
    assert code == 0, said
    assert processes.belonging(run_dir_of(env)) == []
