"""What every process of Ray is started with."""

from __future__ import annotations

import json
from pathlib import Path

from cluster import ray_node
from cluster.settings import Settings


def value(arguments: list[str], name: str) -> str:
    found = [one.partition("=")[2] for one in arguments if one.startswith(f"--{name}=")]
    assert len(found) == 1, f"--{name} stands {len(found)} times"
    return found[0]


def test_environment_keeps_what_is_there_and_adds_the_project() -> None:
    env = ray_node.environment(Settings(), {"HOME": "/h", "PYTHONPATH": "/mine", "BROWNOUT_PACE": "off"})
    assert env["HOME"] == "/h"
    assert env["BROWNOUT_PACE"] == "off"
    assert env["PYTHONPATH"].split(":") == [str(ray_node.PROJECT_ROOT), "/mine"]
    assert ray_node.environment(Settings(), env)["PYTHONPATH"] == env["PYTHONPATH"]


def test_old_variable_that_overrides_the_cache_size_is_dropped() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" not in ray_node.environment(Settings(), {"VLLM_CPU_KVCACHE_SPACE": "4"})


def test_hub_is_off_for_the_built_model_only() -> None:
    assert ray_node.environment(Settings(), {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in ray_node.environment(Settings(model="org/some-model"), {})


def test_local_node_is_told_to_stay_on_loopback() -> None:
    assert ray_node.environment(Settings(), {})["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    in_containers = ray_node.environment(Settings(ray_host="ray-head"), {})
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in in_containers


def test_replica_ports_start_where_the_settings_say() -> None:
    env = ray_node.environment(Settings(port_ingress=31000), {})
    assert env["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "1"
    assert env["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"] == "31000"


def test_local_head_carries_all_replicas() -> None:
    arguments = ray_node.head_arguments(Settings(), Path("/t/r"), replicas=3)
    assert arguments[:2] == ["start", "--head"]
    assert json.loads(value(arguments, "resources")) == {"head": 1, "replica": 3}
    assert value(arguments, "dashboard-host") == "127.0.0.1"
    assert value(arguments, "temp-dir") == "/t/r"


def test_head_in_containers_carries_none() -> None:
    arguments = ray_node.head_arguments(Settings(bind_host="0.0.0.0"), Path("/t"), replicas=0)
    assert json.loads(value(arguments, "resources")) == {"head": 1}
    assert value(arguments, "dashboard-host") == "0.0.0.0"


def test_worker_joins_the_head_and_carries_one() -> None:
    arguments = ray_node.worker_arguments(Settings(ray_host="ray-head"))
    assert value(arguments, "address") == "ray-head:6379"
    assert json.loads(value(arguments, "resources")) == {"replica": 1}
