"""Checks the documents against the code: relative links, fields of the configuration, commands and Python examples.

``python tools/check_docs.py`` reports each problem with file and line and exits 1 when there is one;
``--write`` writes the table of docs/configuration.md anew from cluster/settings.py.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")]
CONFIGURATION = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- fields: written by tools/check_docs.py --write -->", "<!-- end of fields -->"


def field_rows() -> list[str]:
    """Return one Markdown table row a field of Settings, with default and the docstring below the field."""
    tree = ast.parse((ROOT / "cluster" / "settings.py").read_text())
    settings = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Settings")
    sys.path.insert(0, str(ROOT))
    from cluster.settings import Settings

    rows = []
    for node, after in zip(settings.body, [*settings.body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        name = node.target.id
        if name not in Settings.model_fields:
            continue
        says = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            says = " ".join(str(after.value.value).split())
        default = Settings.model_fields[name].default
        rows.append(f"| `{name}` | `{default if default != '' else '(empty)'}` | {says} |")
    return rows


def configuration_table() -> str:
    head = ["| field | default | meaning |", "|---|---|---|"]
    return "\n".join([BEGIN, *head, *field_rows(), END])


def check_links(page: Path, text: str) -> list[str]:
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            path = target.split("#", 1)[0]
            if not path or re.match(r"[a-z]+:", path):
                continue
            if not (page.parent / path).exists():
                problems.append(f"{page.relative_to(ROOT)}:{number}: link to {path}, which does not exist")
    return problems


def check_paths(page: Path, text: str) -> list[str]:
    """Source files named in backticks must exist: ``cluster/links.py`` and the like."""
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        for path in re.findall(
            r"`((?:policies|cluster|chaos|tests|docs|tools)/[\w./-]+\.(?:py|md|sh|yml|html))`", line
        ):
            if not (ROOT / path).exists() and "my_" not in path:
                problems.append(f"{page.relative_to(ROOT)}:{number}: names {path}, which does not exist")
    return problems


def check_targets(page: Path, text: str) -> list[str]:
    """``make x`` in a page must be a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    return [
        f"{page.relative_to(ROOT)}: names 'make {name}', which is no target"
        for name in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.M)
        if name not in targets
    ]


def check_python(page: Path, text: str) -> list[str]:
    problems = []
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        try:
            ast.parse(block)
        except SyntaxError as error:
            problems.append(f"{page.relative_to(ROOT)}: a Python example does not parse: {error}")
    return problems


def main() -> int:
    if "--write" in sys.argv:
        text = CONFIGURATION.read_text()
        before, rest = text.split(BEGIN)
        CONFIGURATION.write_text(before + configuration_table() + rest.split(END)[1])
        return 0
    problems: list[str] = []
    for page in PAGES:
        text = page.read_text()
        for check in (check_links, check_paths, check_targets, check_python):
            problems += check(page, text)
    if configuration_table() not in CONFIGURATION.read_text():
        problems.append("docs/configuration.md: the table of fields is old; run tools/check_docs.py --write")
    print("\n".join(problems) or f"docs: {len(PAGES)} pages are true to the code")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
