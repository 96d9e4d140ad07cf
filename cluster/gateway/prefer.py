"""The header ``Prefer`` (RFC 7240), as far as it is known here: ``respond-async``."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

RESPOND_ASYNC: Final = "respond-async"


def prefers_async(scope: Scope) -> bool:
    """Tell whether the client would rather have a job than wait. A preference that cannot be read is none."""
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"prefer"]
    preferences = (part.split(";")[0].strip().lower() for value in given for part in value.split(","))
    return RESPOND_ASYNC in preferences
