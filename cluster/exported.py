"""What ``up`` exported to the processes of a local cluster, kept beside the state file.

A gateway that another command starts again, in another shell, must find the very same ports, store and tenants.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

FILE: Final = "environment.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """Environment variables: those of the cluster, and those in which its gateway differs now."""

    cluster: dict[str, str]
    gateway: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return what is ours of an environment."""
        return cls({name: value for name, value in environment.items() if name.startswith("BROWNOUT_")})

    @classmethod
    def load(cls, run_dir: Path) -> Self:
        """Read it.

        Raises:
            OSError, ValueError, TypeError: there is none, or none that can be read.
        """
        return cls(**json.loads((run_dir / FILE).read_text()))

    def save(self, run_dir: Path) -> None:
        """Write it in one step, for this user's eyes: a store's URL has a password."""
        scratch = run_dir / f"{FILE}.tmp"
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        scratch.replace(run_dir / FILE)

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """Return a whole environment: ``around`` without its shell's own settings and proxies, with what is kept."""
        plain = {
            name: value
            for name, value in around.items()
            if not name.startswith("BROWNOUT_") and not name.lower().endswith("_proxy")
        }
        return {**plain, **self.cluster, **self.gateway}
