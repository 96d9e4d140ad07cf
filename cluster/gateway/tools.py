"""Which methods of the tool there are, what each may do, and what it may take: one line a method.

What is not listed here is not asked: of a method that nobody knows, nobody knows whether asking twice is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cluster.gateway.errors import InvalidRequest
from cluster.gateway.schema import GenerationRequest, ToolCall

BUDGET: Final = 3.0
"""What the tools of one request may take together, in deadlines of a single one."""


@dataclass(frozen=True, slots=True)
class ToolMethod:
    """One method.

    Args:
        effect: it changes something. It is then asked under a key that the gateway derives, and never twice blindly.
        deadline_s: how long it may take; None stands for the setting ``tool_deadline_s``.
        at_once: how many may be under way; the others wait, within their deadline, and hold up no other method.
        lookup: a read-only method that takes the key and returns what asking under that key did, or null when it
            did nothing. A method with one must itself act once a key, however often it is asked under it.
    """

    name: str
    effect: bool = False
    deadline_s: float | None = None
    at_once: int = 32
    lookup: str | None = None


KEY_PARAM: Final = "idempotency_key"
"""The parameter under which a method with an effect, and its lookup, take the key."""

METHODS: Final[Mapping[str, ToolMethod]] = {
    one.name: one
    for one in (
        ToolMethod("get_price"),
        ToolMethod("get_transfer"),
        ToolMethod("submit_transfer", effect=True, at_once=16, lookup="get_transfer"),
    )
}


@dataclass(slots=True)
class Step:
    """One tool call of a request and what has become of it.

    ``state`` is empty before it is asked; then ``asked``, ``done``, ``refused`` or ``unknown`` for a method with an
    effect, and ``done`` or ``failed`` for one that only reads. ``effect`` tells whether something was, or may have
    been, changed: ``none``, ``done`` or ``unknown``.
    """

    name: str
    call: ToolCall
    method: ToolMethod
    outcome: str = ""
    state: str = ""
    effect: str = "none"
    reused: bool = False

    def told(self) -> dict[str, object]:
        """Return it as the audit and the answer tell of it."""
        return {
            "step": self.name,
            "method": self.method.name,
            "outcome": self.outcome,
            "state": self.state,
            "effect": self.effect,
            "reused": self.reused,
        }


def steps_of(request: GenerationRequest, methods: Mapping[str, ToolMethod] = METHODS) -> list[Step]:
    """Return the tool calls of a request in their order.

    Raises:
        InvalidRequest: there is no such method, or the call brings a key of its own.
    """
    found: list[Step] = []
    single = request.tool_call is not None
    for number, call in enumerate(request.asked_tools):
        field = "tool_call" if single and number == 0 else f"tool_calls.{number - single}"
        method = methods.get(call.method)
        if method is None:
            raise InvalidRequest(
                f"{field}.method is {call.method!r}; known are {', '.join(sorted(methods))}",
                param=f"{field}.method",
                code="unknown_tool",
            )
        if method.effect and KEY_PARAM in call.params:
            raise InvalidRequest(
                f"{field}.params has {KEY_PARAM!r}, which the gateway derives from the request's own "
                f"idempotency-key header; leave it out and send that header",
                param=f"{field}.params.{KEY_PARAM}",
                code="invalid_value",
            )
        found.append(Step(f"tool-{number}", call, method))
    return found
