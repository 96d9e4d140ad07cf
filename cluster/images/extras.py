"""Prints the dependencies of the named extras, one a line, so that an image build depends on them alone.

pyproject.toml stays the only list of dependencies; the image build copies what this prints and not the file itself.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^\]]*)\])?")


def dependencies(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the sorted requirements of ``extras`` and of those that they include by ``project[other]``.

    Raises:
        KeyError: an extra that the file does not name.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    found: set[str] = set(project.get("dependencies", ()))
    open_extras, seen = list(extras), set[str]()
    while open_extras:
        extra = open_extras.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            parts = _REQUIREMENT.match(requirement)
            if parts and parts["name"] == project["name"]:
                open_extras += [name.strip() for name in (parts["extras"] or "").split(",")]
            else:
                found.add(requirement)
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(dependencies(Path(sys.argv[1]), sys.argv[2:])))
