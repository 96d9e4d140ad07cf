"""What the compose file takes from the shell reaches a setting, and comes up where nothing is set."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.settings import Settings, load

FILE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
FIELDS = {f"BROWNOUT_{field.upper()}" for field in Settings.model_fields}
OTHERS = {"BROWNOUT_API_KEY", "BROWNOUT_COMPOSE_PROJECT", "BROWNOUT_IN_COMPOSE", "BROWNOUT_RUN_DIR"}
DOCKER = shutil.which("docker")


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_every_variable_of_a_service_is_a_setting() -> None:
    names = {name for service in services().values() for name in service.get("environment", {})}
    ours = {name for name in names if name.startswith("BROWNOUT_")}
    assert {"BROWNOUT_PACE", "BROWNOUT_TENANTS_FILE", "BROWNOUT_JOB_LEASE_S"} <= ours
    assert ours <= FIELDS | OTHERS


def test_what_is_exported_for_compose_does_not_stop_a_local_cluster(tmp_path: Path) -> None:
    names = set(re.findall(r"\$\{(BROWNOUT_\w+)", FILE.read_text()))
    assert "BROWNOUT_TENANTS_DIR" in names
    load(dict.fromkeys(names - FIELDS, "/srv/tenants"), cwd=tmp_path)


@pytest.mark.skipif(DOCKER is None, reason="docker is not installed")
@pytest.mark.parametrize(
    ("shell", "file", "mounted"),
    [
        ({}, "", "volume tenants at /etc/brownout"),
        ({"BROWNOUT_TENANTS_DIR": "/srv/t"}, "/srv/t/tenants.toml", "bind /srv/t at /srv/t"),
        (
            {"BROWNOUT_TENANTS_DIR": "/srv/t", "BROWNOUT_TENANTS_FILE": "/srv/t/other.toml"},
            "/srv/t/other.toml",
            "bind /srv/t at /srv/t",
        ),
        ({"BROWNOUT_TENANTS_FILE": "/else/t.toml"}, "/else/t.toml", "volume tenants at /etc/brownout"),
    ],
)
def test_the_gateway_goes_by_the_tenants_file_that_the_shell_names(
    shell: dict[str, str], file: str, mounted: str
) -> None:
    assert DOCKER is not None
    told = subprocess.run(
        [DOCKER, "compose", "-f", str(FILE), "config"],
        env={"PATH": str(Path(DOCKER).parent), "HOME": str(Path.home()), **shell},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "not a docker command" in told.stderr or "unknown shorthand flag" in told.stderr:
        pytest.skip("docker is here without Compose v2")
    assert told.returncode == 0, told.stderr
    assert "is not set" not in told.stderr
    gateway = yaml.safe_load(told.stdout)["services"]["gateway"]
    assert gateway["environment"]["BROWNOUT_TENANTS_FILE"] == file
    volume = gateway["volumes"][-1]
    assert f"{volume['type']} {volume['source']} at {volume['target']}" == mounted
    assert volume["read_only"]
