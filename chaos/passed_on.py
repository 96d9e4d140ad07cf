"""Commands that are the cluster's own: they run as its modules do, because nothing here may import them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_KEYS: Final = "cluster.gateway.keys"
PASSED_ON: Final[dict[str, tuple[str, str]]] = {
    "audit": ("cluster.gateway.audit_cli", "Verify, list, show and prune the audit: 'brownout audit -h'."),
    "keys": (_KEYS, "Add, list, rotate and revoke API keys: 'brownout keys -h'."),
    "tenants": (_KEYS, "See whether the tenants file is in order: 'brownout tenants check'."),
}
"""Command to the module that does it, and to the line that the help has on it."""


def passed_on(command: str, arguments: Sequence[str]) -> int:
    """Run the module with these arguments; return its exit code."""
    module, _ = PASSED_ON[command]
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
