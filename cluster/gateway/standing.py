"""Whose work a call is and how much it matters: what its headers ask for, as far as its sender may.

In open mode the headers are the caller's own words: whoever runs the gateway for callers that are not trusted sets
them in front, or has keys (docs/tenants.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from cluster import public
from cluster.gateway.errors import Forbidden, InvalidRequest
from cluster.gateway.exchange import only_header
from cluster.gateway.identity import Identity
from policies.priority import Priority

_NAME: Final = re.compile(r"[A-Za-z0-9._:@/~-]{1,128}")


@dataclass(frozen=True, slots=True)
class Standing:
    """Priority, tenant and class of a call; empty where the caller names none."""

    priority: Priority = Priority.CRITICAL
    tenant: str = ""
    service_class: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the headers of a request say, each where there is one."""

    priority: Priority | None = None
    tenant: str | None = None
    service_class: str | None = None


def claimed_by(scope: Scope) -> Claimed:
    """Return what the headers of a request say.

    Raises:
        InvalidRequest: one of them says what it cannot.
    """
    given = only_header(scope, public.HEADER_PRIORITY)
    try:
        priority = None if given is None else Priority.of(given)
    except ValueError as error:
        raise InvalidRequest(
            f"{public.HEADER_PRIORITY}: {error}", param=public.HEADER_PRIORITY, code="invalid_value"
        ) from None
    return Claimed(priority, _name(scope, public.HEADER_TENANT), _name(scope, public.HEADER_CLASS))


def recognised(identity: Identity, claimed: Claimed) -> Identity:
    """Return who asks, with the tenant that they name: their own word in open mode, else it must be the key's.

    Raises:
        Forbidden: it is another one's.
    """
    if claimed.tenant is None or claimed.tenant == identity.tenant:
        return identity
    if not identity.open:
        raise Forbidden(
            f"{public.HEADER_TENANT} is {claimed.tenant!r}, which is not the tenant of this API key; leave it out",
            param=public.HEADER_TENANT,
            code="wrong_tenant",
        )
    return identity.of_tenant(claimed.tenant)


def standing_of(identity: Identity, claimed: Claimed) -> Standing:
    """Return the standing that somebody has with what they ask for.

    Raises:
        Forbidden: they may not have it.
    """
    named = identity.default_class if claimed.service_class is None else claimed.service_class
    if named and not identity.open and named not in identity.classes:
        raise Forbidden(
            f"{public.HEADER_CLASS} is {named!r}, which is not a class of this tenant; "
            f"it has {', '.join(identity.classes) or 'none'}",
            param=public.HEADER_CLASS,
            code="class_not_allowed",
        )
    if claimed.priority is None:
        own = Priority.CRITICAL if identity.open else identity.work_class(named).priority
        return Standing(max(own, identity.ceiling), identity.tenant, named)
    if claimed.priority < identity.ceiling:
        raise Forbidden(
            f"{public.HEADER_PRIORITY} is {claimed.priority.label!r}, this tenant's calls have "
            f"{identity.ceiling.label!r} at most",
            param=public.HEADER_PRIORITY,
            code="priority_not_allowed",
        )
    return Standing(claimed.priority, identity.tenant, named)


def _name(scope: Scope, name: str) -> str | None:
    given = only_header(scope, name)
    if given is not None and not _NAME.fullmatch(given):
        raise InvalidRequest(
            f"{name} is {given[:40]!r}, it must be 1 to 128 letters, digits or any of . _ : @ / ~ -",
            param=name,
            code="invalid_value",
        )
    return given
