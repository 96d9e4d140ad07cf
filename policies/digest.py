"""One text for a value, and a digest of a text: what a key is made of must not depend on how it was written down."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """Return the one JSON text of a value. Numbers and strings are left as they are written: 1, 1.0 and "1" differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def sha256(text: str) -> str:
    """Return the digest of a text; lone surrogates, which JSON may carry, have one too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
