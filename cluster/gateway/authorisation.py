"""Whether somebody may have what a request asks for: the model, the tool, and the standing of the call."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from cluster.gateway.errors import Forbidden
from cluster.gateway.identity import Identity
from cluster.gateway.standing import Standing, claimed_by, recognised, standing_of


def authorise(
    identity: Identity, scope: Scope, *, model: str, methods: Iterable[str] = ()
) -> tuple[Identity, Standing]:
    """Return who asks, with the tenant that the request is for, and the standing of the call.

    ``methods`` are those of the tool that the request wants asked.

    Raises:
        InvalidRequest: a header says what it cannot.
        Forbidden: they may not have it.
    """
    claimed = claimed_by(scope)
    identity = recognised(identity, claimed)
    require_allowed(identity, model=model, methods=methods)
    return identity, standing_of(identity, claimed)


def require_allowed(identity: Identity, *, model: str, methods: Iterable[str] = ()) -> None:
    """See that somebody may use the model and ask the tool: at first, and anew before an answer of before is given.

    Raises:
        Forbidden: they may not.
    """
    if not identity.may_use(model):
        raise Forbidden(
            f"this tenant may not use the model {model!r}", param="model", code="model_not_allowed"
        )
    for method in methods:
        if not identity.may_ask(method):
            raise Forbidden(
                f"this tenant may not have the tool asked for {method!r}",
                param="tool_call.method",
                code="tool_not_allowed",
            )
