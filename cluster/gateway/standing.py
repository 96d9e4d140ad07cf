"""Who asks and how much it matters, as the headers of a request say it.

They are the caller's own words: whoever runs the gateway for callers that are not trusted has to set them in front.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from cluster import public
from cluster.gateway.errors import InvalidRequest
from cluster.gateway.exchange import header
from policies.priority import Priority

_NAME: Final = re.compile(r"[A-Za-z0-9._:@/~-]{1,128}")


@dataclass(frozen=True, slots=True)
class Standing:
    """Priority, tenant and class of a call; empty where the caller names none."""

    priority: Priority = Priority.CRITICAL
    tenant: str = ""
    service_class: str = ""


def standing_of(scope: Scope) -> Standing:
    """Return what the headers of a request say.

    Raises:
        InvalidRequest: one of them says what it cannot.
    """
    given = header(scope, public.HEADER_PRIORITY)
    try:
        priority = Priority.CRITICAL if given is None else Priority.of(given)
    except ValueError as error:
        raise InvalidRequest(
            f"{public.HEADER_PRIORITY}: {error}", param=public.HEADER_PRIORITY, code="invalid_value"
        ) from None
    return Standing(priority, _name(scope, public.HEADER_TENANT), _name(scope, public.HEADER_CLASS))


def _name(scope: Scope, name: str) -> str:
    given = header(scope, name)
    if given is not None and not _NAME.fullmatch(given):
        raise InvalidRequest(
            f"{name} is {given[:40]!r}, it must be 1 to 128 letters, digits or any of . _ : @ / ~ -",
            param=name,
            code="invalid_value",
        )
    return given or ""
