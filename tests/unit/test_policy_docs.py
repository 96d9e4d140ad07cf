"""The pages of docs/policies are true: each has the same parts, its examples run, and every policy has a page."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from policies.profiles import OPTIONAL, POLICIES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "policies"
INDEX = FOLDER / "README.md"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page != INDEX)
HEADINGS = (
    "## What it protects from",
    "## How it works",
    "## Knobs",
    "## Numbers",
    "## When not to use it",
    "## Example",
)
MOST_LINES = 19
"""Of an example."""
_ROW = re.compile(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \|([^|]*)\| .+ \|$", re.M)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def blocks() -> list[tuple[str, str]]:
    """Every Python block of every page, with a name for it."""
    return [
        (f"{page.name}-{number}", block)
        for page in PAGES
        for number, block in enumerate(_BLOCK.findall(page.read_text()), start=1)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_every_part_in_order(page: Path) -> None:
    found = [line for line in page.read_text().splitlines() if line in HEADINGS]
    assert found == list(HEADINGS)
    assert _BLOCK.search(page.read_text().split("## Example")[1]), "the example is missing"


@pytest.mark.parametrize(("name", "block"), blocks(), ids=[name for name, _ in blocks()])
def test_an_example_is_short_and_needs_nothing_but_the_policies(name: str, block: str) -> None:
    tree = ast.parse(block)
    assert sum(bool(line.strip()) for line in block.splitlines()) <= MOST_LINES
    for node in ast.walk(tree):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            assert module.split(".")[0] in {"policies", *sys.stdlib_module_names}, module
    said = any(isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(tree))
    assert said or any(isinstance(node, ast.Assert) for node in ast.walk(tree)), "it shows nothing"


@pytest.mark.parametrize(("name", "block"), blocks(), ids=[name for name, _ in blocks()])
def test_an_example_runs(name: str, block: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_policy_has_a_page() -> None:
    named = [name.strip(" `") for _, names in _ROW.findall(INDEX.read_text()) for name in names.split(",")]
    told = sorted(name for name in named if name)
    assert told == sorted((*POLICIES, *OPTIONAL)), (
        "each policy on one page, and no page on one that is not there"
    )


def test_every_page_stands_in_the_index() -> None:
    assert sorted(name for name, _ in _ROW.findall(INDEX.read_text())) == [page.name for page in PAGES]
