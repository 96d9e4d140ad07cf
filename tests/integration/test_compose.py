"""The cluster in containers: it comes up whole, keeps to its limits, and survives a killed container's dead address."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import openai
import pytest

from cluster import public

pytestmark = pytest.mark.docker

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
BASE_URL = f"http://127.0.0.1:{public.PORT_CLIENT}/v1"
LINKS_URL = f"http://127.0.0.1:{public.PORT_LINKS}"
PROMETHEUS_URL = f"http://127.0.0.1:{public.PORT_PROMETHEUS}"
GIB = 1024**3

# A listener whose queue of connections is full: Linux drops every further SYN, so the address neither answers nor
# refuses. It needs no privilege.
HOLD_BLACK = f"""
import socket, time
here = socket.gethostbyname(socket.gethostname())
held = []
for port in range({public.PORT_INGRESS}, {public.PORT_INGRESS + 8}):
    held.append(socket.create_server((here, port), backlog=0))
    for _ in range(4):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((here, port))
        held.append(client)
print("black", flush=True)
time.sleep(600)
"""


def docker(*arguments: str, timeout_s: float = 60) -> str:
    """Return what the command prints; its own words are in the error when it fails."""
    done = subprocess.run(
        ["docker", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"docker {' '.join(arguments[:3])}: {done.stderr}"
    return done.stdout.strip()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def until(what: str, observe: Callable[[], T | None], bound_s: float) -> T:
    """Return the first true observation; fail when there is none within ``bound_s``."""
    ends_at = time.monotonic() + bound_s
    while not (seen := observe()):
        assert time.monotonic() < ends_at, f"{what}: not within {bound_s:g} s"
        time.sleep(0.1)
    return seen


def replica_links() -> list[dict[str, Any]]:
    return [link for link in get(f"{LINKS_URL}/links")["links"] if link["kind"] == "replica"]


def served_by() -> str:
    """Make one short call and return the link that answered it."""
    client = openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0, timeout=30)
    answer = client.chat.completions.with_raw_response.create(
        model=public.MODEL_NAME, messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    assert answer.parse().usage.completion_tokens == 4
    return answer.headers[public.HEADER_REPLICA]


def address_of(container: str) -> str:
    networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container))
    return str(next(iter(networks.values()))["IPAddress"])


def connect_from_gateway(host: str, port: int) -> str:
    """Try a connection from inside the network; ``ok``, or the name of the error."""
    program = (
        f"import socket\ntry: socket.create_connection(({host!r}, {port}), 3); print('ok')\n"
        "except OSError as error: print(type(error).__name__)"
    )
    return docker("compose", "exec", "-T", "gateway", "python", "-c", program)


@pytest.fixture(scope="module")
def configured() -> dict[str, Any]:
    """What docker compose makes of the file, with every profile."""
    return dict(json.loads(docker("compose", "--profile", "*", "config", "--format", "json")))["services"]


def containers(project: str) -> list[dict[str, Any]]:
    """The containers of the project as the engine describes them."""
    label = f"label=com.docker.compose.project={project}"
    return list(json.loads(docker("inspect", *docker("ps", "-q", "--filter", label).split())))


@pytest.fixture
def running(compose: str) -> list[dict[str, Any]]:
    return containers(compose)


def test_it_comes_up_healthy_and_the_openai_client_gets_tokens(compose):
    # An experiment that ran before may have started a container again: its first check is up to 15 s away.
    until(
        "every container is healthy",
        lambda: all(one["State"]["Health"]["Status"] == "healthy" for one in containers(compose)),
        bound_s=60,
    )
    client = openai.OpenAI(base_url=BASE_URL, api_key="unused", max_retries=0, timeout=30)
    chunks = list(
        client.chat.completions.create(
            model=public.MODEL_NAME,
            messages=[{"role": "user", "content": "tell me"}],
            max_tokens=12,
            stream=True,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_every_replica_serves_behind_a_link_of_its_own(running):
    links = replica_links()
    workers = [c["Name"].lstrip("/") for c in running if "worker" in c["Name"]]
    assert {link["upstream"].split(":")[0] for link in links} == {address_of(name) for name in workers}
    answered: set[str] = set()

    def all_answered() -> bool:
        answered.add(served_by())
        return answered == {link["name"] for link in links}

    until("each replica answers a call", all_answered, bound_s=60)


def test_ports_are_published_on_loopback_only(configured, running):
    published = [port for service in configured.values() for port in service.get("ports", ())]
    assert {int(port["published"]) for port in published} == {
        public.PORT_CLIENT,
        public.PORT_GATEWAY,
        public.PORT_GATEWAY_ADMIN,
        public.PORT_LINKS,
        public.PORT_TOXIPROXY,
        public.PORT_RAY_DASHBOARD,
        public.PORT_PROMETHEUS,
    }
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    bound = [b for c in running for ports in c["NetworkSettings"]["Ports"].values() for b in ports or ()]
    assert {binding["HostIp"] for binding in bound} == {"127.0.0.1"}


def test_memory_limits_fit_into_12_gib(configured, running):
    total = 0
    for name, service in configured.items():
        assert "mem_limit" in service, f"service {name} has no memory limit"
        total += int(service["mem_limit"]) * int(service.get("deploy", {}).get("replicas", 1))
    assert total <= 12 * GIB
    assert all(container["HostConfig"]["Memory"] > 0 for container in running)


def test_no_container_was_ended_for_want_of_memory(running):
    assert [c["Name"] for c in running if c["State"]["OOMKilled"] or c["RestartCount"]] == []


@pytest.mark.parametrize("image", ["brownout-light", "brownout-runtime"])
def test_the_code_is_mounted_and_not_in_the_image(compose, image):
    """So that a change of code rebuilds nothing."""
    assert docker("run", "--rm", image, "ls", "-A", "/app") == ""


@pytest.fixture
def held_black(compose: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that takes over the address of a dead container and answers nothing there."""
    started: list[str] = []

    def hold(address: str) -> None:
        # The engine hands out the lowest free address: the dead container's comes up after those below it.
        for _ in range(8):
            program = ["python", "-c", HOLD_BLACK]
            started.append(docker("run", "-d", "--network", f"{compose}_default", "brownout-light", *program))
            if address_of(started[-1]) == address:
                until("the address is held", lambda: docker("logs", started[-1]) == "black", bound_s=20)
                return
        pytest.fail(f"no new container was given {address}")

    yield hold
    if started:
        docker("rm", "-f", *started)


def test_a_new_link_serves_while_the_dead_address_stays_black(compose, running, held_black):
    """Regression of "after docker kill the address black-holed, and every other request hung for 10 s"."""
    before = replica_links()
    victim = next(c["Name"].lstrip("/") for c in running if "worker" in c["Name"])
    dead = address_of(victim)
    old = next(link for link in before if link["upstream"].startswith(f"{dead}:"))
    host, port = old["listen"].split(":")

    docker("kill", victim)
    try:
        held_black(dead)
        assert connect_from_gateway(dead, public.PORT_INGRESS) == "TimeoutError", "the address is not black"
        # A client through the old link, as a call in flight would be: its proxy now dials into the dark.
        assert connect_from_gateway(host, int(port)) in ("ok", "ConnectionRefusedError")
        assert all(served_by() != old["name"] for _ in range(6)), "the lost replica answered"
    finally:
        docker("start", victim)

    def successor() -> dict[str, Any] | None:
        known = {link["name"] for link in before}
        return next((link for link in replica_links() if link["name"] not in known), None)

    new = until("the successor has a link", successor, bound_s=180)
    assert new["upstream"].split(":")[0] == address_of(victim) != dead
    until("the new link serves", lambda: served_by() == new["name"], bound_s=20)
    assert connect_from_gateway(dead, public.PORT_INGRESS) == "TimeoutError", "the address is black no more"
    assert old["name"] not in {link["name"] for link in replica_links()}


def test_prometheus_follows_the_replicas(compose):
    """Stands after the test that moves one of them."""

    def scraped() -> bool:
        targets = get(f"{PROMETHEUS_URL}/api/v1/targets")["data"]["activeTargets"]
        up = {t["labels"].get("link"): t["health"] for t in targets if t["labels"]["job"] == "vllm"}
        return up == {link["name"]: "up" for link in replica_links()}

    until("Prometheus scrapes exactly the replicas that run", scraped, bound_s=60)


def test_prometheus_reaches_every_part(compose):
    def all_up() -> bool:
        targets = get(f"{PROMETHEUS_URL}/api/v1/targets")["data"]["activeTargets"]
        up = {t["labels"]["job"] for t in targets if t["health"] == "up"}
        return up >= {"gateway", "links", "toxiproxy", "vllm", "ray", "prometheus"}

    until("every job has a target that is up", all_up, bound_s=60)
